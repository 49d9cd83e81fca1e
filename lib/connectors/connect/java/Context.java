package connectors.connect.java;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.AbstractMap;
import java.util.Map;
import java.util.Queue;

/** What a connector or task is given of its runtime: it answers out of a map, and notes the calls that are no mere questions. */
public final class Context implements InvocationHandler {
    private final Map answers;
    private final Queue calls;

    public Context(Map answers, Queue calls) {
        this.answers = answers;
        this.calls = calls;
    }

    /** An object with this interface, whose methods answer what the map holds under their names. */
    public Object proxy(Class kind) {
        return Proxy.newProxyInstance(kind.getClassLoader(), new Class[] {kind}, this);
    }

    public Object invoke(Object proxy, Method method, Object[] arguments) {
        String name = method.getName();
        if (method.getDeclaringClass() == Object.class) {
            return ofObject(proxy, name, arguments);
        }
        if (arguments != null || !answers.containsKey(name)) {
            calls.add(new AbstractMap.SimpleEntry(name, arguments));
        }
        return answers.get(name);
    }

    private static Object ofObject(Object proxy, String name, Object[] arguments) {
        if (name.equals("equals")) {
            return Boolean.valueOf(proxy == arguments[0]);
        }
        if (name.equals("hashCode")) {
            return Integer.valueOf(System.identityHashCode(proxy));
        }
        return proxy.getClass().getInterfaces()[0].getName();
    }
}
