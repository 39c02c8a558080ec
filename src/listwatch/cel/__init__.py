"""CEL, the Common Expression Language, with Kubernetes' extensions for rules and policies.

Compile an expression once and evaluate it often::

    kinds = schema_type({"type": "object", "properties": {"replicas": {"type": "integer"}}})
    environment = Environment({"self": kinds.type}, object_types(kinds))
    program = compile_expression("self.replicas <= 5", environment)
    value, cost = program.evaluate({"self": to_value({"replicas": 3}, kinds)})

The rules of a schema (`x-kubernetes-validations`) are applied together: `Rules(schema)` validates
objects; `rule_problems(schema, path)` returns what a server would refuse in the rules.

Knows nothing of servers and clusters. Every evaluation has a budget, and regular expressions run in
linear time, so no expression and no value can block a process.
"""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.cel.cost import (
        estimate,
    )
    from listwatch.cel.environment import (
        Environment,
    )
    from listwatch.cel.errors import (
        CompilationError,
        CostLimitExceededError,
        EvaluationError,
        InstantiationError,
        Issue,
    )
    from listwatch.cel.patience import (
        Patience,
        TakesLongError,
    )
    from listwatch.cel.program import (
        PER_CALL_LIMIT,
        Program,
        compile_expression,
    )
    from listwatch.cel.rule_definitions import (
        rule_problems,
    )
    from listwatch.cel.rules import (
        RuleFinding,
        RuleResult,
        Rules,
    )
    from listwatch.cel.schema_types import (
        SchemaType,
        object_types,
        schema_type,
    )
    from listwatch.cel.schema_values import (
        to_value,
    )
    from listwatch.cel.types import (
        Type,
    )
    from listwatch.cel.values import (
        Value,
    )

__all__ = [
    "PER_CALL_LIMIT",
    "CompilationError",
    "CostLimitExceededError",
    "Environment",
    "EvaluationError",
    "InstantiationError",
    "Issue",
    "Patience",
    "Program",
    "RuleFinding",
    "RuleResult",
    "Rules",
    "SchemaType",
    "TakesLongError",
    "Type",
    "Value",
    "compile_expression",
    "estimate",
    "object_types",
    "rule_problems",
    "schema_type",
    "to_value",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.cel.cost": "estimate",
        "listwatch.cel.environment": "Environment",
        "listwatch.cel.errors": (
            "CompilationError CostLimitExceededError EvaluationError InstantiationError Issue"
        ),
        "listwatch.cel.patience": "Patience TakesLongError",
        "listwatch.cel.program": "PER_CALL_LIMIT Program compile_expression",
        "listwatch.cel.rule_definitions": "rule_problems",
        "listwatch.cel.rules": "RuleFinding RuleResult Rules",
        "listwatch.cel.schema_types": "SchemaType object_types schema_type",
        "listwatch.cel.schema_values": "to_value",
        "listwatch.cel.types": "Type",
        "listwatch.cel.values": "Value",
    },
)
