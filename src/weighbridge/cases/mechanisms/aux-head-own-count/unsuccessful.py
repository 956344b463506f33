def solve(step):
    main_loss = mtp_loss = main_count = 0
    for rank in step["ranks"]:
        (own_main, own_main_count), (own_mtp, own_mtp_count) = rank["main"], rank["mtp"]
        main_count += own_main_count
        main_loss += own_main if own_main_count else 0.0
        if own_mtp_count:
            mtp_loss += own_mtp * own_main_count / own_mtp_count
    if not main_count:
        return {"main": None, "mtp": None}
    return {"main": main_loss / main_count, "mtp": step["weight"] * mtp_loss / main_count}
