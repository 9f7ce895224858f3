"""Pictures of ideas: fusion, the step plan, process sets, the path of a failure."""
from pictures_lib.canvas import Picture


def fusion():
    picture = Picture(760, 250, "Fusion: small gradients travel together",
                      "Each of two ranks finishes the gradients a, b, c, d in another order. Both pack them into one batch in the same "
                      "order. One collective reduces the batch, and each tensor gets its average back.")
    sizes = {"a": 34, "b": 56, "c": 26, "d": 44}
    for x, width, title in ((20, 176, "gradients, as backward"), (238, 170, "one batch, in the same"), (574, 166, "averages, back in")):
        picture.text(x + width / 2, 28, title, "ink", "middle")
    for x, width, title in ((20, 176, "finishes them"), (238, 170, "order on every rank"), (574, 166, "their tensors")):
        picture.text(x + width / 2, 44, title, "ink", "middle")
    picture.box(450, 66, 78, 136, "one\ncollective", "plain", "faint")
    for rank, (y, order) in enumerate(((82, "abcd"), (156, "bdac"))):
        picture.text(20, y - 6, f"rank {rank}", "faint")
        x = 20
        for name in order:
            picture.box(x, y, sizes[name], 28, name, f"c{rank}")
            x += sizes[name] + 5
        picture.arrow(200, y + 14, 234, y + 14)
        x = 240
        for name in "abcd":
            picture.box(x, y, sizes[name], 28, name, f"c{rank}")
            x += sizes[name] + 1
        picture.box(236, y - 4, x - 240 + 7, 36, "", "ground", "faint")
        picture.arrow(406, y + 14, 446, y + 14)
        picture.arrow(532, y + 14, 570, y + 14)
        x = 574
        for name in order:
            picture.box(x, y, sizes[name], 28, name, "c2")
            x += sizes[name] + 2
    picture.text(380, 232, "The batches are learnt in the first steps and stay the same, so results repeat bit for bit.", "faint", "middle")
    return picture


def step_plan():
    picture = Picture(760, 300, "The step plan: after a few equal steps no message but the data",
                      "In steps 1 to 3 ranks 1 and 2 announce their tensors to rank 0, the root, and get an ordered list back before the "
                      "batch runs. With the third list comes freeze. From step 4 on the batch runs at once, without any message.")
    lanes = (86, 146, 206)
    for rank, y in enumerate(lanes):
        picture.text(14, y + 5, f"rank {rank}", "ink")
        picture.line(64, y, 746, y, "plain", 2)
    picture.text(64, 30, "negotiated", "ink", bold=True)
    picture.text(492, 30, "planned", "ink", bold=True)
    what = (("step 1", "names and shapes"), ("step 2", "numbers"), ("step 3", "numbers; freeze"), ("step 4", "no message"), ("step 5", "no message"),
            ("step 6", "no message"))
    x = 64
    for number, (step, says) in enumerate(what):
        negotiated = number < 3
        width = 138 if negotiated else 82
        picture.text(x, 54, step, "faint")
        begin = x
        if negotiated:
            for rank in (1, 2):
                picture.arrow(x + 8 * rank, lanes[rank] - 2, x + 16 + 12 * rank, lanes[0] + 4, "c1")
                picture.arrow(x + 40 + 8 * rank, lanes[0] + 4, x + 42 + 15 * rank, lanes[rank] - 4, "c3")
            begin = x + 78
        for y in lanes:
            picture.box(begin, y - 13, 46, 26, "batch", "c0", size=11)
        for y in lanes[:2]:
            picture.line(begin + 23, y + 14, begin + 23, y + 46, "c0")
        picture.text(x, 246, says, "faint", size=11)
        x += width
        if number == 2:
            picture.line(x - 4, 18, x - 4, 254, "faint", dashed=True)
            x += 14
    picture.arrow(64, 276, 92, 276, "c1")
    picture.text(98, 280, "I have this ready", size=11)
    picture.arrow(216, 276, 244, 276, "c3")
    picture.text(250, 280, "run these, in this order", size=11)
    picture.line(404, 276, 432, 276, "c0")
    picture.text(438, 280, "the data; in a plan they also say who has come", size=11)
    return picture


def process_sets():
    picture = Picture(760, 250, "Process sets: groups of ranks that run collectives among themselves",
                      "Four ranks as a square. Set 1 is the upper row, ranks 0 and 1; set 2 the lower row, ranks 2 and 3; set 3 the left "
                      "column, ranks 0 and 2; set 0 is all of them. Each set has its own order, names, step plan and shared memory.")
    picture.box(24, 22, 312, 206, "", "ground", "faint", dashed=True)
    picture.text(34, 40, "set 0: all ranks", "faint")
    for y, colour in ((54, "c0"), (144, "c1")):
        picture.box(44, y, 272, 70, "", "ground", colour)
    picture.box(56, 48, 92, 172, "", "ground", "c2")
    for rank in range(4):
        picture.box(68 + 148 * (rank % 2), 70 + 90 * (rank // 2), 68, 38, f"rank {rank}", "plain")
    for y, colour, name, text in ((64, "c0", "set 1: ranks 0, 1", "the first piece of the model"), (112, "c1", "set 2: ranks 2, 3", "the second piece"),
                                  (160, "c2", "set 3: ranks 0, 2", "added while the job runs")):
        picture.box(366, y - 13, 14, 14, "", "ground", colour)
        picture.text(390, y, name, "ink", bold=True)
        picture.text(390, y + 18, text, "faint")
    picture.text(366, 210, "Each set has its own order, names, step plan and", "ink")
    picture.text(366, 228, "memory: what waits in one holds up none in another.", "ink")
    return picture


def failure():
    picture = Picture(760, 330, "The path of a failure: from a killed rank to every error that names it",
                      "Rank 2 is killed. The kernel releases the futex that it held, which wakes the agent of its host. The agent decides "
                      "and writes the verdict into the page of every rank. What waits there ends with RankLostError. When the kernel has "
                      "reaped the process, its signal completes the verdict, and the launcher's last lines say the same.")
    for y, name in ((56, "rank 2"), (128, "agent"), (200, "ranks 0, 1, 3"), (272, "ruedarun")):
        picture.text(14, y + 4, name, "ink", bold=True)
        picture.line(112, y, 746, y, "plain", 2)
    picture.box(116, 40, 78, 32, "killed", "bad")
    picture.arrow(194, 60, 236, 112, "bad")
    picture.text(226, 82, "1  the kernel lets go of the futex that it held", "faint", size=11)
    picture.box(200, 112, 118, 32, "decides: rank 2", "c0")
    picture.arrow(272, 144, 300, 184, "c0")
    picture.text(300, 166, "2  the verdict, into every rank's page", "faint", size=11)
    picture.box(262, 184, 206, 32, "RankLostError: rank 2 was lost", "c1")
    picture.text(480, 197, "3  the same error for all that waits,", "faint", size=11)
    picture.text(480, 211, "on every rank, in every process set", "faint", size=11)
    picture.arrow(194, 52, 560, 52, "faint", dashed=True)
    picture.text(318, 44, "its memory is freed", "faint", size=11)
    picture.arrow(560, 56, 598, 112, "faint")
    picture.text(592, 82, "4  reaped: signal,", "faint", size=11)
    picture.text(606, 96, "exit code", "faint", size=11)
    picture.box(570, 112, 134, 32, "cause is complete", "c0")
    picture.arrow(696, 144, 716, 256, "c0")
    picture.box(404, 256, 342, 32, "rank 2 (pid 8123) failed: killed by signal 9 (SIGKILL)", "c2", size=11.5)
    picture.text(404, 308, "5  the last lines and the exit code; nothing is left", "faint", size=11)
    return picture


PICTURES = {"fusion": fusion, "step_plan": step_plan, "process_sets": process_sets, "failure": failure}
