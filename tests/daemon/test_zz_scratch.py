from test_hostile_soak import *  # noqa
import time

def names(harpd):
    return sorted(str(p.relative_to(harpd.run_dir)) for p in (harpd.run_dir / "bpf").rglob("*"))

def test_names(harpd):
    cycle(harpd, 50)
    before = names(harpd)
    print(before)
    for i in range(40):
        cycle(harpd, 100)
        now = names(harpd)
        if now != before:
            print(i, sorted(set(now) ^ set(before)))
            before = now
    print(harpd.words()[-3000:])
    assert False
