"""Prints the table of vs_pytorch.sh, or with "hosts" of many_hosts.sh, from lines of "name round
number"."""
import collections
import random
import statistics
import sys

# measure, sign, required, unit, what is compared: the median over rounds of first / second.
ROWS = [
    ("all-reduce 25 MiB, symmetric: Gloo / ours", ">=", 10, "", "peer_reduce", "reduce"),
    ("all-reduce 25 MiB, ordinary: Gloo / ours", "", None, "", "peer_reduce", "reduce_ordinary"),
    ("all-reduce 25 MiB: ours / bound", "<=", 1.25, "", "reduce", "bound"),
    ("empty collective", "<", 0.1, " ms", "barrier", None),
    ("empty collective, other threads compute", "<", 0.1, " ms", "barrier_busy", None),
    ("MLP 2048, batch 32: PyTorch DDP / ours", ">=", 1.8, "", "peer_wide", "wide"),
    ("MLP 2048, batch 32: alone / DDP", ">=", 0.88, "", "wide_alone", "wide"),
    ("MLP 2048, batch 32, TCP: PyTorch DDP / ours", ">=", 1.3, "", "peer_wide", "wide_tcp"),
    ("MLP 256, batch 64: PyTorch DDP / ours", ">=", 2.0, "", "peer_narrow", "narrow"),
    ("DDP adds to backward, per parameter", "<", 1, " us", "overhead", None),
    ("cohort run to the first finished step", "<", 300, " ms", "start", None),
]

# Of many_hosts.sh.
HOSTS = [
    ("2 hosts x 2, all-reduce: Gloo / hierarchical", ">=", 1.5, "", "hosts_gloo", "hosts_auto"),
]


def interval(values):
    """95 % confidence interval of the median, by bootstrap."""
    draw = random.Random(1)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(2000)
    )
    return medians[50], medians[1949]


def read(path):
    samples = collections.defaultdict(list)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.split()  # rounds are complete, and in order
            samples[name].append(float(value))
    return samples


def holds(sign, got, required):
    return {">=": got >= required, "<=": got <= required, "<": got < required}[sign]


def print_row(row, samples):
    measure, sign, required, unit, first, second = row
    needed = [first] + ([second] if second else [])
    wanted = f"{sign} {required}{unit}" if sign else "report"
    if not all(samples.get(name) for name in needed):
        left = [name for name in needed if samples.get(name)]
        mine = f"{statistics.median(samples[left[0]]):.3f}" if left else "-"
        print(f"{measure:44} | {wanted:>9} | {'not measured':20} | {'-':>8} | {mine:>8}")
        return
    if second is None:
        values = samples[first]
        peer, mine = "-", f"{statistics.median(values):.3f}"
    else:
        values = [a / b for a, b in zip(samples[first], samples[second], strict=True)]
        peer, mine = (f"{statistics.median(samples[name]):.3f}" for name in needed)
        if first == "reduce":  # ours / bound
            peer, mine = mine, peer
    got = statistics.median(values)
    text = f"{got:.3g}{unit}"
    low, high = interval(values)
    if required and 0.9 <= got / required <= 1.1 or second and 0.95 <= got <= 1.05:
        text += f" [{low:.3g}, {high:.3g}]"
    if sign and not holds(sign, got, required):
        text += " MISSED"
    print(f"{measure:44} | {wanted:>9} | {text:20} | {peer:>8} | {mine:>8}")


def main():
    samples = read(sys.argv[1])
    print(f"{'measure':44} | {'required':>9} | {'got':20} | {'peer ms':>8} | {'ours ms':>8}")
    print("-" * 102)
    for row in HOSTS if "hosts" in sys.argv[2:] else ROWS:
        print_row(row, samples)
    print("peer: Gloo or DDP under PyTorch, flat Gloo, the bound, or our step without communication;")
    print("[..]: 95 % confidence interval of the median over rounds, near the requirement.")


if __name__ == "__main__":
    main()
