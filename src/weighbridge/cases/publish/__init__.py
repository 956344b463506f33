"""The catalogue as a static site: pages, JSON and source bundles that need no server and no network."""
