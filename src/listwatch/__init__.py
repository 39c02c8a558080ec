"""Kubernetes list-watch for Python: local, always-correct copies of resources, and controllers.

This package has what most programs need first; the rest is in the packages below:
`listwatch.cache`, `.client`, `.workqueue`, `.runtime`, `.testing`, `.apiserver`, `.controllers`,
`.cel` and the module `listwatch.sync`. Names are loaded on first use, so that `import listwatch`
stays cheap.
"""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names
from listwatch.version import __version__ as __version__

if TYPE_CHECKING:
    from listwatch.cache.factory import (
        InformerFactory,
    )
    from listwatch.cache.handlers import (
        Added,
        Deleted,
        HandlerFuncs,
        Updated,
    )
    from listwatch.cache.shared_informer import (
        SharedInformer,
    )
    from listwatch.client.client import (
        Client,
    )
    from listwatch.client.config import (
        Config,
    )
    from listwatch.client.kubeconfig import (
        load_config,
    )
    from listwatch.clock import (
        Clock,
        FakeClock,
    )
    from listwatch.errors import (
        AlreadyExistsError,
        BadRequestError,
        ConfigError,
        ConflictError,
        DisconnectedError,
        ExpiredError,
        ForbiddenError,
        InternalServerError,
        InvalidError,
        ListWatchError,
        NotFoundError,
        ServerTimeoutError,
        ServiceUnavailableError,
        StatusError,
        TooManyRequestsError,
        UnauthorizedError,
    )
    from listwatch.objects import (
        Object,
        ObjectDecodeError,
    )
    from listwatch.runtime.manager import (
        Manager,
    )
    from listwatch.runtime.results import (
        Result,
        TerminalError,
        requeue,
        requeue_after,
    )
    from listwatch.testing.api_server import (
        APIServer,
    )


__all__ = [
    "APIServer",
    "Added",
    "AlreadyExistsError",
    "BadRequestError",
    "Client",
    "Clock",
    "Config",
    "ConfigError",
    "ConflictError",
    "Deleted",
    "DisconnectedError",
    "ExpiredError",
    "FakeClock",
    "ForbiddenError",
    "HandlerFuncs",
    "InformerFactory",
    "InternalServerError",
    "InvalidError",
    "ListWatchError",
    "Manager",
    "NotFoundError",
    "Object",
    "ObjectDecodeError",
    "Result",
    "ServerTimeoutError",
    "ServiceUnavailableError",
    "SharedInformer",
    "StatusError",
    "TerminalError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "Updated",
    "load_config",
    "requeue",
    "requeue_after",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.cache.factory": "InformerFactory",
        "listwatch.cache.handlers": "Added Deleted HandlerFuncs Updated",
        "listwatch.cache.shared_informer": "SharedInformer",
        "listwatch.client.client": "Client",
        "listwatch.client.config": "Config",
        "listwatch.client.kubeconfig": "load_config",
        "listwatch.clock": "Clock FakeClock",
        "listwatch.errors": (
            "AlreadyExistsError BadRequestError ConfigError ConflictError "
            "DisconnectedError ExpiredError ForbiddenError InternalServerError "
            "InvalidError ListWatchError NotFoundError ServerTimeoutError "
            "ServiceUnavailableError StatusError TooManyRequestsError UnauthorizedError"
        ),
        "listwatch.objects": "Object ObjectDecodeError",
        "listwatch.runtime.manager": "Manager",
        "listwatch.runtime.results": "Result TerminalError requeue requeue_after",
        "listwatch.testing.api_server": "APIServer",
    },
)
