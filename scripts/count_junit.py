"""Prints "passed failed skipped" of a JUnit file, as ctest and pytest write them."""
import sys
import xml.etree.ElementTree as ElementTree

passed = failed = skipped = 0
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    outcomes = {child.tag for child in case}
    if outcomes & {"failure", "error"}:
        failed += 1
    elif "skipped" in outcomes or case.get("status") in ("notrun", "disabled"):
        skipped += 1
    else:
        passed += 1
print(passed, failed, skipped)
