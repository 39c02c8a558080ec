"""Both kinds of policies as a source of admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from listwatch.apiserver.admission.policies import Configuration, Editing, PolicyIndex

if TYPE_CHECKING:
    from listwatch.apiserver.admission.chain import Mutator, Validator
    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.admission.matching import Cluster
    from listwatch.apiserver.admission.mutating_policies import MutatingPolicy
    from listwatch.apiserver.admission.validating_policies import ValidatingPolicy


class Policies:
    """Both kinds of policies as a source of admission. For one event loop.

    Args:
        cluster: contains namespaces and parameters.
        configuration: contains the policies and their bindings.
        decide: answers the questions to `authorizer`.
        editing: patches objects.
    """

    def __init__(
        self, cluster: Cluster, configuration: Configuration, decide: Decide, editing: Editing
    ) -> None:
        self._cluster = cluster
        self._configuration = configuration
        self._decide = decide
        self._editing = editing
        self._mutating: PolicyIndex[MutatingPolicy] | None = None
        self._validating: PolicyIndex[ValidatingPolicy] | None = None

    def mutator(self) -> Mutator | None:
        """Return a mutator for one object, if there are mutating policies."""
        if not self._configuration.exists("mutatingadmissionpolicybindings"):
            return None
        # the parser of expressions is loaded on first use
        from listwatch.apiserver.admission import mutating_policies  # noqa: PLC0415

        if self._mutating is None:
            self._mutating = PolicyIndex(
                "mutating", self._configuration, mutating_policies.MutatingPolicy
            )
        return mutating_policies.PolicyMutator(
            self._mutating, self._cluster, self._decide, self._editing
        )

    def validator(self) -> Validator | None:
        """Return a validator for one object, if there are validating policies."""
        if not self._configuration.exists("validatingadmissionpolicybindings"):
            return None
        from listwatch.apiserver.admission import validating_policies  # noqa: PLC0415 - as above

        if self._validating is None:
            self._validating = PolicyIndex(
                "validating", self._configuration, validating_policies.ValidatingPolicy
            )
        return validating_policies.PolicyValidator(self._validating, self._cluster, self._decide)
