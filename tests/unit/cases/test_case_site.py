"""The published site: what each tier shows, and that the open one leaks nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from weighbridge.cases.catalogue import MECHANISMS, load_catalogue
from weighbridge.cases.entry import Implementation, load_entry
from weighbridge.cases.publish.leaks import find_leaks, readable_texts
from weighbridge.cases.publish.site import publish_site, secrets_of, write_site
from weighbridge.cases.publish.tiers import Tier, telling_lines
from weighbridge.cases.verify import Verified, verify_entries
from weighbridge.errors import InputError, RecordError

CATALOGUE = load_catalogue()
Sites = tuple[list[Verified], Path, Path]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """The whole catalogue, verified once, as (runs, open site, member site)."""
    verified = verify_entries(CATALOGUE)
    assert [problem for one in verified for problem in one.problems] == []
    home = tmp_path_factory.mktemp("sites")
    for tier in Tier:
        write_site(verified, tier=tier, out=home / tier.value)
    return verified, home / "open", home / "member"


def unpacked(site: Path, into: Path) -> Path:
    """The site with every bundle unpacked beside it."""
    for path in site.rglob("*.zip"):
        with zipfile.ZipFile(path) as bundle:
            bundle.extractall(into / path.stem)
    return into


def test_no_line_and_no_digest_of_any_repair_is_in_the_open_tier(sites: Sites, tmp_path: Path) -> None:
    verified, open_site, member_site = sites
    secrets = [secret for one in verified for secret in secrets_of(one)]
    assert len(secrets) > 35 * 9
    for place in (open_site, unpacked(open_site, tmp_path / "bundles")):
        texts = list(readable_texts(place))
        assert texts
        squeezed = {name: re.sub(r"\s+", "", text) for name, text in texts}
        for secret in secrets:
            wanted = re.sub(r"\s+", "", secret)
            assert [name for name, text in squeezed.items() if wanted in text] == [], secret
    found = {secret for _, secret in find_leaks(member_site, secrets)}
    assert found >= {re.sub(r"\s+", "", line) for one in verified for line in telling_lines(one.entry)}


def test_every_repair_has_a_line_that_would_give_it_away() -> None:
    for entry in CATALOGUE:
        assert telling_lines(entry), entry.name


@pytest.mark.parametrize(
    "hide",
    [
        lambda line: line,
        lambda line: "  ".join(line.split(" ")),
        lambda line: json.dumps({"a": [line]}),
        lambda line: "".join(f"<span>{part}</span> " for part in line.replace("<", "&lt;").split(" ")),
    ],
    ids=["plain", "blanks", "json", "html"],
)
def test_a_leak_is_found_wherever_it_hides(hide: Callable[[str], str], tmp_path: Path) -> None:
    line = telling_lines(CATALOGUE[0])[0]
    for name in ("page.html", "data.json", "style.css"):
        text = hide(line)
        if name.endswith(".json") and not text.startswith("{"):
            continue
        if "<span>" in text and not name.endswith(".html"):
            continue
        home = tmp_path / name.replace(".", "-")
        home.mkdir()
        (home / name).write_text(text)
        assert find_leaks(home, [line])
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as bundle:
            bundle.writestr(f"folder/{name}", text)
        (home / name).unlink()
        (home / "bundle.zip").write_bytes(held.getvalue())
        assert find_leaks(home, [line])
        assert not find_leaks(home, ["return another / thing"])


def test_publish_refuses_to_write_a_leak(tmp_path: Path) -> None:
    entry = load_entry(MECHANISMS / "mean-of-rank-means")
    told = entry.facts.model_copy(update={"matters": f"Do this: {telling_lines(entry)[0]}", "related": []})
    with pytest.raises(RecordError, match="which is part of a repair"):
        publish_site([dataclasses.replace(entry, facts=told)], tier=Tier.OPEN, out=tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="is not empty"):
        publish_site([], tier=Tier.OPEN, out=tmp_path)


def test_bundles_are_the_same_bytes_every_time(sites: Sites, tmp_path: Path) -> None:
    _, open_site, member_site = sites
    for tier, site in ((Tier.OPEN, open_site), (Tier.MEMBER, member_site)):
        entry = dataclasses.replace(CATALOGUE[0], facts=CATALOGUE[0].facts.model_copy(update={"related": []}))
        publish_site([entry], tier=tier, out=tmp_path / tier.value)
        again = json.loads((tmp_path / tier.value / "data" / f"{entry.name}.json").read_text())
        assert again["id"] == "WB-0001"
        first = zipfile.ZipFile(site / "bundles" / f"{entry.name}.zip")
        second = zipfile.ZipFile(tmp_path / tier.value / "bundles" / f"{entry.name}.zip")
        for name in first.namelist():
            if not name.endswith("case.json"):  # its related entries were taken out above
                assert first.read(name) == second.read(name), name
    one = (open_site / "bundles" / "count-dtype.zip").read_bytes()
    write_site([v for v in sites[0] if v.entry.name == "count-dtype"], tier=Tier.OPEN, out=tmp_path / "again")
    assert (tmp_path / "again" / "bundles" / "count-dtype.zip").read_bytes() == one
    page = (open_site / "entries" / "count-dtype.html").read_text()
    assert hashlib.sha256(one).hexdigest() in page


def test_a_bundle_s_programs_run_and_its_records_are_theirs(sites: Sites) -> None:
    _, _, member_site = sites
    with zipfile.ZipFile(member_site / "bundles" / "exp-before-average.zip") as bundle:
        names = bundle.namelist()
        for which in Implementation:
            for n in (1, 2, 5):
                program = bundle.read(f"exp-before-average/{which}-N{n}.py")
                record = json.loads(bundle.read(f"exp-before-average/records/{which}-N{n}.json"))
                assert record["source_sha256"] == hashlib.sha256(program).hexdigest()
                assert "environment" not in record
    assert len(names) == 3 + 2 * 9


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets += [value for key in ("href", "src") if (value := found.get(key))]
        if found.get("id"):
            self.ids.append(str(found["id"]))


def test_every_link_leads_to_a_file_and_none_to_the_network(sites: Sites) -> None:
    for site in sites[1:]:
        pages = list(site.rglob("*.html"))
        assert len(pages) == 36
        for page in pages:
            links = Links()
            links.feed(page.read_text("utf-8"))
            assert len(set(links.ids)) == len(links.ids)
            for target in links.targets:
                if target != "data:,":
                    assert not re.match(r"[a-z]+:|//", target), target
                    assert (page.parent / target).is_file(), (page, target)
        assert not re.search(r"https?://", (site / "site.css").read_text() + (site / "site.js").read_text())


def test_a_page_says_what_an_entry_asks_for(sites: Sites) -> None:
    _, open_site, member_site = sites
    shown = (open_site / "entries" / "mean-of-rank-means.html").read_text("utf-8")
    for heading in (
        "Contract", "Root cause", "What it is asked", "The failure", "Looks right, and is not", "The repair",
        "Why it matters", "Verification and scope", "Variants", "Reports", "Related", "Take it along", "Digests",
    ):  # fmt: skip
        assert heading in shown
    assert "Held for members" in shown
    assert "FA-99256" in shown
    everything = (member_site / "entries" / "mean-of-rank-means.html").read_text("utf-8")
    assert "Held for members" not in everything
    assert everything.count("<table>") == 1 + 3 * 3
    assert shown.count("<table>") == 1 + 2 * 3


def test_the_data_says_what_is_held(sites: Sites) -> None:
    _, open_site, member_site = sites
    for site, held in ((open_site, True), (member_site, False)):
        catalogue = json.loads((site / "catalogue.json").read_text("utf-8"))
        assert len(catalogue["entries"]) == 35
        for entry in catalogue["entries"]:
            assert entry["implementations"]["repair"]["held"] is held
            assert entry == json.loads((site / "data" / f"{entry['name']}.json").read_text("utf-8"))


def test_exhibits_show_the_fault_in_both_tiers_and_the_source_to_members(sites: Sites) -> None:
    _, open_site, member_site = sites
    for site, repairs in ((open_site, 0), (member_site, 1)):
        page = (site / "entries" / "mean-of-rank-means.html").read_text("utf-8")
        assert page.count('<svg viewBox="') == 1 + repairs
        assert "wrong, mean-of-rank-means" in page
        assert page.count("right, token-mean") == repairs
        assert ("torchrun --nproc-per-node" in page) is bool(repairs)
        page = (site / "entries" / "padding-duplicates.html").read_text("utf-8")
        assert "Reported is 0.3333; the rows of all ranks give 0.2: wrong." in page
        with zipfile.ZipFile(site / "bundles" / "mean-of-rank-means.zip") as bundle:
            assert ("mean-of-rank-means/training.py" in bundle.namelist()) is bool(repairs)


def test_at_least_twenty_entries_have_an_exhibit_that_was_observed() -> None:
    shown = [entry for entry in CATALOGUE if entry.exhibit and entry.exhibited]
    assert len(shown) >= 20
    for entry in shown:
        assert entry.exhibited
        assert [entry.exhibited[kind]["verdict"] for kind in ("failing", "repair")] == ["wrong", "right"]
