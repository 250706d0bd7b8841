#!/usr/bin/env python3
"""Counts of a ctest run, from its JUnit file: cases of the reference tests, skipped tests with their reasons.

    scripts/test_report.py JUNIT_FILE CTEST_EXIT_CODE     exits with that code
"""
import re
import sys
import xml.etree.ElementTree as xml


def reason_of(output):
    found = re.search(r"Skipped\n(.+)", output) or re.search(r"SKIPPED: (.+)", output)
    return found.group(1).strip() if found else "no reason given"


def main(path, code):
    passed, failed, skipped, cases = 0, [], {}, []
    for case in xml.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        cases += re.findall(r"^\[ CASES    \] (.+)", output, re.M)
        status = case.get("status")
        if case.find("skipped") is not None or status in ("notrun", "disabled"):
            skipped.setdefault(reason_of(output), []).append(case.get("name"))
        elif case.find("failure") is not None or status == "fail":
            failed.append(case.get("name"))
        else:
            passed += 1
    print()
    for line in cases:
        print(f"reference: {line}")
    for reason, names in skipped.items():
        print(f"skipped {len(names)}: {reason}\n    " + "\n    ".join(names))
    for name in failed:
        print(f"FAILED: {name}")
    number = sum(map(len, skipped.values()))
    print(f"tests: {passed} passed, {len(failed)} failed, {number} skipped of {passed + len(failed) + number}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
