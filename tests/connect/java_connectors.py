"""Connectors of Java that tests write, compiled in the JVM that runs them."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.connect.java.jvm import Jvm

CONNECTOR = """
public class %(name)sConnector extends org.apache.kafka.connect.source.SourceConnector {
    private java.util.Map settings;
    public void start(java.util.Map settings) { this.settings = settings; }
    public Class taskClass() { return %(name)sTask.class; }
    public java.util.List taskConfigs(int most) {
        java.util.List configs = new java.util.ArrayList();
        for (int number = 0; number < most; number++) {
            java.util.Map config = new java.util.HashMap(settings);
            config.put("number", String.valueOf(number));
            configs.add(config);
        }
        return configs;
    }
    public void stop() { %(stop)s }
    public org.apache.kafka.common.config.ConfigDef config() { return new org.apache.kafka.common.config.ConfigDef(); }
    public String version() { return "1"; }
}
class %(name)sTask extends org.apache.kafka.connect.source.SourceTask {
    private java.util.Map settings;
    private int number;
    private static int lives = 0;
    private long at = 0L;
    public void start(java.util.Map settings) {
        this.settings = settings;
        number = Integer.parseInt((String) settings.get("number"));
        lives++;
    }
    public java.util.List poll() throws InterruptedException { %(poll)s }
    private java.util.List records(int count) {
        java.util.List records = new java.util.ArrayList();
        for (int index = 0; index < count; index++) {
            records.add(new org.apache.kafka.connect.source.SourceRecord(
                java.util.Collections.singletonMap("task", settings.get("number")),
                java.util.Collections.singletonMap("at", Long.valueOf(at)), "t", null, null, null,
                org.apache.kafka.connect.data.Schema.OPTIONAL_STRING_SCHEMA, value()));
        }
        return records;
    }
    private String value() {
        String value = settings.get("number") + ":" + at++;
        return value.endsWith(String.valueOf(settings.get("null"))) ? null : value;
    }
    static void note(java.util.Map settings, String line) {
        try {
            java.io.FileWriter file = new java.io.FileWriter((String) settings.get("notes"), true);
            file.write(line + "\\n");
            file.close();
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
    }
    %(more)s
    public void stop() { %(task_stop)s }
    public String version() { return "1"; }
}
"""


def use_connector(
    patch: pytest.MonkeyPatch, name: str, poll: str, stop: str = "", task_stop: str = "", more: str = ""
) -> dict[str, str]:
    """The properties of a connector whose task polls by this Java code. It may call ``records(count)``."""
    source = CONNECTOR % {"name": name, "poll": poll, "stop": stop, "task_stop": task_stop, "more": more}
    original, loaders = Jvm.instance, dict[int, Any]()

    def instance(jvm: Jvm, wanted: str) -> Any:
        if not wanted.startswith(name):
            return original(jvm, wanted)
        if jvm.pid not in loaders:
            compiler = jvm.java.org.codehaus.janino.SimpleCompiler()
            compiler.cook(source)
            loaders[jvm.pid] = compiler.getClassLoader()
        constructor = loaders[jvm.pid].loadClass(wanted).getDeclaredConstructors()[0]
        constructor.setAccessible(True)
        return constructor.newInstance(jvm._array("Object"))

    patch.setattr(Jvm, "instance", instance)
    return {"connector.class": f"{name}Connector", "name": name, "value.converter": "StringConverter"}


def without_validation(patch: pytest.MonkeyPatch) -> None:
    """A class that is compiled is in no jar, where a validation would look for it."""
    patch.setattr("connectors.connect.java.source_host.validated", lambda settings, sink: [])
