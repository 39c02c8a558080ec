"""Custom resources from Python types: their definitions, schemas and rules."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.client.typed_objects import manifest_of
    from listwatch.resources.checking import (
        UnknownVersionError,
        check,
        check_definition,
        check_manifest,
    )
    from listwatch.resources.conversion import ConversionError, Conversions
    from listwatch.resources.custom_resource import (
        Column,
        CustomResource,
        Scale,
        custom_resource_of,
        definition,
        resource,
        rules,
    )
    from listwatch.resources.errors import ResourceTypeError
    from listwatch.resources.installing import InstallError, install
    from listwatch.resources.markers import (
        Affinity,
        AnyObject,
        Atomic,
        BuiltIn,
        Condition,
        Conditions,
        ConfigMapKeySelector,
        Container,
        Duration,
        EmbeddedObject,
        EnvVar,
        FreeForm,
        IntOrString,
        Keywords,
        LabelSelector,
        ListMap,
        ListSet,
        LocalObjectReference,
        PodSpec,
        PodTemplateSpec,
        Quantity,
        ResourceRequirements,
        Rule,
        SecretKeySelector,
        ServiceSpec,
        Time,
        Toleration,
        Volume,
    )
    from listwatch.resources.object_meta import ObjectMeta
    from listwatch.resources.problems import Problem

__all__ = [
    "Affinity",
    "AnyObject",
    "Atomic",
    "BuiltIn",
    "Column",
    "Condition",
    "Conditions",
    "ConfigMapKeySelector",
    "Container",
    "ConversionError",
    "Conversions",
    "CustomResource",
    "Duration",
    "EmbeddedObject",
    "EnvVar",
    "FreeForm",
    "InstallError",
    "IntOrString",
    "Keywords",
    "LabelSelector",
    "ListMap",
    "ListSet",
    "LocalObjectReference",
    "ObjectMeta",
    "PodSpec",
    "PodTemplateSpec",
    "Problem",
    "Quantity",
    "ResourceRequirements",
    "ResourceTypeError",
    "Rule",
    "Scale",
    "SecretKeySelector",
    "ServiceSpec",
    "Time",
    "Toleration",
    "UnknownVersionError",
    "Volume",
    "check",
    "check_definition",
    "check_manifest",
    "custom_resource_of",
    "definition",
    "install",
    "manifest_of",
    "resource",
    "rules",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.client.typed_objects": "manifest_of",
        "listwatch.resources.checking": (
            "UnknownVersionError check check_definition check_manifest"
        ),
        "listwatch.resources.conversion": "ConversionError Conversions",
        "listwatch.resources.custom_resource": (
            "Column CustomResource Scale custom_resource_of definition resource rules"
        ),
        "listwatch.resources.errors": "ResourceTypeError",
        "listwatch.resources.installing": "InstallError install",
        "listwatch.resources.markers": (
            "Affinity AnyObject Atomic BuiltIn Condition Conditions ConfigMapKeySelector Container "
            "Duration EmbeddedObject EnvVar FreeForm IntOrString LabelSelector ListMap ListSet "
            "LocalObjectReference Keywords PodSpec PodTemplateSpec Quantity ResourceRequirements "
            "Rule SecretKeySelector ServiceSpec Time Toleration Volume"
        ),
        "listwatch.resources.object_meta": "ObjectMeta",
        "listwatch.resources.problems": "Problem",
    },
)
