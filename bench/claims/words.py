# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""The words around the verdicts, in both languages."""

from bench.claims.claim import text
from bench.claims.verdict import Text

WORDS: dict[str, Text] = {
    "confirmed": text("confirmed", "成立"),
    "refuted": text("refuted", "不成立"),
    "depends-on": text("depends on", "视情况而定"),
    "not-yet-measured": text("not yet measured", "尚未测得"),
}
DEFINITIONS: dict[str, Text] = {
    "confirmed": text("every row that can tell supports the claim", "凡能判断的行全部支持该说法"),
    "refuted": text("every row that can tell contradicts it", "凡能判断的行全部与之相反"),
    "depends-on": text(
        "some rows support it and some contradict it; the variable is the smallest set of settings that tells the two "
        "kinds apart, found from the rows",
        "有的行支持，有的行相反；变量是能把两类行区分开的最小一组设置，由各行推得",
    ),
    "not-yet-measured": text(
        "no row can tell; what others have published stands beside it and decides nothing",
        "没有能判断的行；他人已发表的数据列在旁边，但不作判定",
    ),
}
PROVENANCE: dict[str, Text] = {
    "measured": text("measured", "实测"),
    "emulated": text("emulated", "模拟"),
}
VALIDITY: dict[str, Text] = {
    "valid": text("valid", "有效"),
    "suspect": text("suspect", "存疑"),
    "unchecked": text("unchecked", "未检查"),
}
HEADER = {
    "en": ("id", "claim", "verdict", "variable", "because"),
    "zh": ("标识", "说法", "判定", "变量", "依据"),
}
ROWS = {
    "en": ("", "row", "stack", "where from", "validity", "says"),
    "zh": ("", "行", "软件栈", "来源", "有效性", "内容"),
}
FOR = {"en": {True: "for", False: "against"}, "zh": {True: "支持", False: "反对"}}
TITLES = {
    "en": {
        "table": "Verdicts",
        "rule": "How to choose a stage, as far as the rows go",
        "published": "published",
    },
    "zh": {"table": "判定", "rule": "如何选择阶段：以现有数据为据的规则", "published": "已发表"},
}
EVIDENCE = text(
    "Evidence: memory and traffic may rest on measured rows (real ranks) or emulated rows (DeepSpeed's own code as one "
    "rank of N); speed needs rows of 2 or more GPUs in 3 or more launches. Invalid rows are never evidence; suspect "
    "rows are where their figures are not in doubt, and say so.",
    "证据：内存与通信可依据实测行（真实 rank）或模拟行（以 DeepSpeed 自身代码充当 N 个 rank 之一）；"
    "速度需要 2 块及以上 GPU、3 次及以上启动的行。"
    "无效（invalid）行从不作为证据；存疑（suspect）行只在其数值不受质疑时采用，并予以注明。",
)
