"""Connect's interfaces without compiled Java: proxies and functions made of method handles, inside a child JVM.

A method handle is a typed reference to a Java method. Handles are bound, chained and guarded like functions, and Java makes an
implementation of an interface with one method of each. So a record is transformed, converted and written by a chain of handles
that never calls back into Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

from ...core.state import dumps
from .jvm import Jvm

_CLASSES: Final[Mapping[str, str]] = {
    "Object": "java.lang.Object",
    "String": "java.lang.String",
    "Integer": "java.lang.Integer",
    "Long": "java.lang.Long",
    "Method": "java.lang.reflect.Method",
    "Objects": "[Ljava.lang.Object;",
    "Bytes": "[B",
    "Map": "java.util.Map",
    "List": "java.util.List",
    "Iterable": "java.lang.Iterable",
    "HashMap": "java.util.HashMap",
    "ArrayList": "java.util.ArrayList",
    "Collection": "java.util.Collection",
    "Queue": "java.util.Queue",
    "BlockingQueue": "java.util.concurrent.BlockingQueue",
    "Function": "java.util.function.Function",
    "Consumer": "java.util.function.Consumer",
    "Supplier": "java.util.function.Supplier",
    "BinaryOperator": "java.util.function.BinaryOperator",
    "Callable": "java.util.concurrent.Callable",
    "InvocationHandler": "java.lang.reflect.InvocationHandler",
    "Charset": "java.nio.charset.Charset",
    "DataOutput": "java.io.DataOutputStream",
    "DataInput": "java.io.DataInputStream",
    "Mapper": "com.fasterxml.jackson.databind.ObjectMapper",
    "Longs": "java.util.concurrent.atomic.AtomicLongArray",
    "Semaphore": "java.util.concurrent.Semaphore",
    "Flag": "java.util.concurrent.atomic.AtomicBoolean",
    "Entry": "java.util.AbstractMap$SimpleEntry",
    "Record": "org.apache.kafka.connect.connector.ConnectRecord",
    "SourceRecord": "org.apache.kafka.connect.source.SourceRecord",
    "SourceTask": "org.apache.kafka.connect.source.SourceTask",
    "SinkRecord": "org.apache.kafka.connect.sink.SinkRecord",
    "Metadata": "org.apache.kafka.clients.producer.RecordMetadata",
    "Schema": "org.apache.kafka.connect.data.Schema",
    "SchemaAndValue": "org.apache.kafka.connect.data.SchemaAndValue",
    "Header": "org.apache.kafka.connect.header.Header",
    "Headers": "org.apache.kafka.connect.header.Headers",
    "ConnectHeaders": "org.apache.kafka.connect.header.ConnectHeaders",
    "Converter": "org.apache.kafka.connect.storage.Converter",
    "HeaderConverter": "org.apache.kafka.connect.storage.HeaderConverter",
    "Transformation": "org.apache.kafka.connect.transforms.Transformation",
    "Predicate": "org.apache.kafka.connect.transforms.predicates.Predicate",
    "TimestampType": "org.apache.kafka.common.record.TimestampType",
}


class Handles:
    """The classes and method handles of one JVM."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm, java = jvm, jvm.java
        self.java = java
        self.make = java.java.lang.invoke.MethodHandles
        self.types = java.java.lang.invoke.MethodType
        self.lookup = self.make.publicLookup()
        self.loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        self.classes = {name: self.class_of(full) for name, full in _CLASSES.items()}
        names = {"void": "Void", "bool": "Boolean", "int": "Integer", "long": "Long"}
        self.classes.update({name: getattr(java.java.lang, boxed).TYPE for name, boxed in names.items()})
        self.utf8 = java.java.nio.charset.StandardCharsets.UTF_8
        self.json = self.instance("org.apache.kafka.connect.json.JsonConverter")
        self.json.configure({"schemas.enable": "false"}, False)
        jackson = java.com.fasterxml.jackson.databind
        self._sorted = jackson.ObjectMapper()
        self._sorted.configure(jackson.SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, True)

    def __getitem__(self, name: str) -> Any:
        """A Java class by its short name in this module."""
        return self.classes[name]

    # Objects

    def class_of(self, name: str) -> Any:
        return self.java.java.lang.Class.forName(name)

    def instance(self, name: str) -> Any:
        """A new object of the class ``name``, by its constructor without arguments."""
        return self.class_of(name).getDeclaredConstructor(self.class_array()).newInstance(self.objects())

    def compiled(self, name: str, *arguments: Any) -> Any:
        """A new object of a Java class whose source lies in this package. It has one constructor."""
        (constructor,) = self._sources.loadClass(f"{__package__}.{name}").getConstructors()
        return constructor.newInstance(self.objects(*arguments))

    @cached_property
    def _sources(self) -> Any:
        """The class loader that compiles the Java files of this package, each when its class is needed first."""
        codehaus = self.java.org.codehaus
        finder = codehaus.commons.compiler.util.resource.MapResourceFinder()
        for file in files(__package__).iterdir():
            if file.name.endswith(".java"):
                finder.addResource(f"{__package__.replace('.', '/')}/{file.name}", file.read_bytes())
        loader = codehaus.janino.JavaSourceClassLoader(self.loader, finder, "UTF-8")
        loader.setDebuggingInfo(True, True, False)  # lines and files, for stacks
        return loader

    def array(self, kind: Any, items: Sequence[Any]) -> Any:
        array = self.jvm.gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def class_array(self, *items: Any) -> Any:
        return self.array(self.java.java.lang.Class, items)

    def objects(self, *items: Any) -> Any:
        return self.array(self.java.java.lang.Object, items)

    def handles(self, *items: Any) -> Any:
        return self.array(self.java.java.lang.invoke.MethodHandle, items)

    def ints(self, *items: int) -> Any:
        return self.array(self.java.int, items)

    def from_json(self, text: str) -> Any:
        """A Java value of JSON text. Whole numbers are ``Long``, as the offset store of Connect gives them back."""
        return self.json.toConnectData("", text.encode()).value()

    def to_json(self, value: Any) -> Any:
        """A Python value of a Java map, list, text or number."""
        return None if value is None else json.loads(bytes(self.json.fromConnectData("", None, value)))

    def canonical(self, value: Any) -> str:
        """The canonical JSON of a Java map."""
        return dumps(self.to_json(value))

    # Handles

    def type(self, result: str, *arguments: str) -> Any:
        return self.types.methodType(self[result], self.class_array(*(self[name] for name in arguments)))

    def method(self, owner: str, name: str, result: str, *arguments: str) -> Any:
        """``owner.name(arguments)``, whose first argument is the object."""
        return self.lookup.findVirtual(self[owner], name, self.type(result, *arguments))

    def bound(self, target: Any, owner: str, name: str, result: str, *arguments: str) -> Any:
        """``target.name(arguments)``."""
        return self.method(owner, name, result, *arguments).bindTo(target)

    def static(self, owner: str, name: str, result: str, *arguments: str) -> Any:
        return self.lookup.findStatic(self.class_of(owner), name, self.type(result, *arguments))

    def constructor(self, owner: str, *arguments: str) -> Any:
        return self.lookup.findConstructor(self[owner], self.type("void", *arguments))

    def cast(self, handle: Any, result: str, *arguments: str) -> Any:
        return handle.asType(self.type(result, *arguments))

    def implement(self, interface: str, handle: Any) -> Any:
        """An implementation of an interface with one method."""
        return self.java.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(self[interface], handle)

    def chain(self, first: Any, second: Any) -> Any:
        """``second(first(x))``."""
        return self.make.filterReturnValue(first, second)

    def unless_null(self, handle: Any, argument: str) -> Any:
        """``handle``, but ``null`` where its argument is ``null``."""
        is_null = self.cast(self.static("java.util.Objects", "isNull", "bool", "Object"), "bool", argument)
        return self.make.guardWithTest(is_null, self.make.empty(handle.type()), handle)

    def in_turn(self, handles: Sequence[Any]) -> Any:
        """All of ``handles``, which take the same arguments and return nothing, one after another."""
        whole = handles[-1]
        for handle in reversed(handles[:-1]):
            whole = self.make.foldArguments(whole, handle)
        return whole

    def spread(self, handle: Any, count: int, kind: Any) -> Any:
        """``handle`` of ``count`` arguments as one that gives the same object to each of them."""
        single = self.types.methodType(handle.type().returnType(), self.class_array(kind))
        return self.make.permuteArguments(handle, single, self.ints(*[0] * count))

    def utf8_bytes(self) -> Any:
        """Text to bytes."""
        return self.make.insertArguments(self.method("String", "getBytes", "Bytes", "Charset"), 1, self.objects(self.utf8))

    def utf8_text(self) -> Any:
        """Bytes to text."""
        return self.make.insertArguments(self.constructor("String", "Bytes", "Charset"), 1, self.objects(self.utf8))

    def text_bytes(self, argument: str = "Object") -> Any:
        """Any object's text as bytes, ``null`` for ``null``."""
        text = self.static("java.util.Objects", "toString", "String", "Object")
        return self.unless_null(self.cast(self.chain(text, self.utf8_bytes()), "Bytes", argument), argument)

    def json_bytes(self, argument: str) -> Any:
        """A map or list as the bytes of its JSON."""
        mapper = self.java.com.fasterxml.jackson.databind.ObjectMapper()
        write = self.bound(mapper, "Mapper", "writeValueAsBytes", "Bytes", "Object")
        return self.unless_null(self.cast(write, "Bytes", argument), argument)

    def remembered(self, handle: Any, argument: str) -> Any:
        """``handle``, which is called only once for equal arguments. For arguments of which there are few."""
        known = self.java.java.util.HashMap()
        compute = self.implement("Function", self.cast(handle, "Object", argument))
        look = self.bound(known, "Map", "computeIfAbsent", "Object", "Object", "Function")
        return self.cast(self.make.insertArguments(look, 1, self.objects(compute)), "Bytes", argument)

    # Interfaces with several methods

    def context(self, interface: str, answers: Any, calls: Any) -> Any:
        """An implementation of ``interface`` whose methods answer what the Java map ``answers`` holds under their names.

        Each call is added to the Java queue ``calls``, as an entry of name and arguments.
        """
        get = self.method("Map", "get", "Object", "Object").bindTo(answers)
        by_name = self.make.filterArguments(get, 0, self.handles(self.cast(self._name(), "Object", "Method")))
        answer = self.make.dropArguments(by_name, 1, self.class_array(self["Objects"]))
        entry = self.cast(self.constructor("Entry", "Object", "Object"), "Object", "Object", "Objects")
        entry = self.make.filterArguments(entry, 0, self.handles(self.cast(self._name(), "Object", "Method")))
        add = self.cast(self.bound(calls, "Queue", "add", "bool", "Object"), "void", "Object")
        return self._proxy(interface, self.make.foldArguments(answer, self.chain(entry, add)))

    def offset_reader(self, store: Any) -> Any:
        """An ``OffsetStorageReader`` over a Java map of offsets by :meth:`partition_text`: of one partition, or of many."""
        make = self.make
        text = self.bound(self._sorted, "Mapper", "writeValueAsString", "String", "Object")
        get = self.chain(self.cast(text, "Object", "Object"), self.bound(store, "Map", "get", "Object", "Object"))
        first = make.insertArguments(make.arrayElementGetter(self["Objects"]), 1, self.objects(0))
        single = make.filterArguments(get, 0, self.handles(first))
        many = self.chain(self.cast(first, "Iterable", "Objects"), self._offsets_by_partition(get))
        equals = make.insertArguments(self.method("String", "equals", "bool", "Object"), 0, self.objects("offset"))
        is_single = make.filterArguments(equals, 0, self.handles(self.cast(self._name(), "Object", "Method")))
        both = (single, self.cast(many, "Object", "Objects"))
        method = self.class_array(self["Method"])
        answer = make.guardWithTest(is_single, *(make.dropArguments(handle, 0, method) for handle in both))
        return self._proxy("org.apache.kafka.connect.storage.OffsetStorageReader", answer)

    def partition_text(self, partition: Any) -> str:
        """A source partition as Connect compares them: the number 1 is the same as an ``Integer`` and as a ``Long``."""
        return str(self._sorted.writeValueAsString(partition))

    def _offsets_by_partition(self, get: Any) -> Any:
        """A handle from a collection of partitions to a map of their offsets."""
        make, acc = self.make, self["Map"]
        new = make.dropArguments(self.cast(self.constructor("HashMap"), "Map"), 0, self.class_array(self["Iterable"]))
        put = self.cast(self.method("Map", "put", "Object", "Object", "Object"), "void", "Map", "Object", "Object")
        put = make.filterArguments(put, 2, self.handles(get))
        put = make.permuteArguments(put, self.type("void", "Map", "Object"), self.ints(0, 1, 1))
        same = make.dropArguments(make.identity(acc), 1, self.class_array(self["Object"]))
        return make.iteratedLoop(None, new, make.foldArguments(same, put))

    def _name(self) -> Any:
        return self.method("Method", "getName", "String")

    def _proxy(self, interface: str, handle: Any) -> Any:
        """``handle`` takes the method and the array of arguments."""
        invoke = self.make.dropArguments(handle, 0, self.class_array(self["Object"]))
        kind = self.class_of(interface)
        handler = self.implement("InvocationHandler", invoke)
        return self.java.java.lang.reflect.Proxy.newProxyInstance(kind.getClassLoader(), self.class_array(kind), handler)
