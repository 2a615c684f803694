"""Connecting to Temporal, the same way everywhere."""

import asyncio
import time

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from ratchet.spec import deadlines, names
from ratchet.spec.faults import SpecError, Unavailable
from workers.telemetry import interceptors

CONNECT_PAUSE = 0.2

SEARCH_ATTRIBUTES = {
    names.ATTRIBUTE_STATE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    names.ATTRIBUTE_STEP: IndexedValueType.INDEXED_VALUE_TYPE_INT,
    names.ATTRIBUTE_INCARNATION: IndexedValueType.INDEXED_VALUE_TYPE_INT,
    names.ATTRIBUTE_RECIPE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
}


async def connect(
    address: str,
    *,
    namespace: str = names.NAMESPACE,
    identity: str | None = None,
    deadline: float = deadlines.SERVER_READY,
) -> Client:
    """A client of the server at `address`. Raises Unavailable after `deadline` seconds without one."""
    end = time.monotonic() + deadline
    while True:
        try:
            return await Client.connect(
                address,
                namespace=namespace,
                identity=identity,
                data_converter=pydantic_data_converter,
                interceptors=interceptors(),
            )
        except (RPCError, RuntimeError) as error:
            if time.monotonic() > end:
                raise Unavailable(
                    f"nobody answers as Temporal at {address} ({str(error).splitlines()[0]}): "
                    "start the stack with `ratchet up`, or check the address"
                ) from error
        await asyncio.sleep(CONNECT_PAUSE)


async def register_search_attributes(client: Client) -> None:
    """Make sure that the server knows ours. Raises SpecError if one exists under another type: adding it
    again would be accepted, and silently change nothing."""
    operator = client.operator_service
    try:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=SEARCH_ATTRIBUTES)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
    listed = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    for name, wanted in SEARCH_ATTRIBUTES.items():
        found = listed.custom_attributes.get(name)
        if found != wanted:
            raise SpecError(
                f"search attribute {name} of namespace {client.namespace} is "
                f"{'missing' if found is None else IndexedValueType.Name(found)}, not "
                f"{IndexedValueType.Name(wanted)}: remove it on that server, or use another namespace"
            )
