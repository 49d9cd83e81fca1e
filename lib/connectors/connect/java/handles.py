"""Connect's interfaces without compiled Java: proxies and functions made of method handles, inside a child JVM.

A method handle is a typed reference to a Java method. Handles are bound, chained and guarded like functions, and Java makes an
implementation of an interface with one method of each. So a record is transformed, converted and written by a chain of handles
that never calls back into Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

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

    # Interfaces with several methods

    def context(self, interface: str, answers: Mapping[str, Any], calls: Any) -> Any:
        """An implementation of ``interface`` whose methods answer what ``answers`` holds under their names.

        Each call is added to the Java queue ``calls``, as an entry of name and arguments.
        """
        java_answers = self.java.java.util.HashMap()
        for name, answer in answers.items():
            java_answers.put(name, answer)
        return self.compiled("Context", java_answers, calls).proxy(self.class_of(interface))
