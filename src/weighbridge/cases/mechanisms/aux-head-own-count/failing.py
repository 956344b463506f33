def solve(step):
    main_loss = mtp_loss = main_count = 0
    for rank in step["ranks"]:
        main_count += rank["main"][1]
        main_loss += rank["main"][0] if rank["main"][1] else 0.0
        mtp_loss += rank["mtp"][0] if rank["mtp"][1] else 0.0
    if not main_count:
        return {"main": None, "mtp": None}
    return {"main": main_loss / main_count, "mtp": step["weight"] * mtp_loss / main_count}
