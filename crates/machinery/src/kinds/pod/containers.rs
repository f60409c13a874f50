//! Whether a pod's containers are right.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::checks::{self, Problems};
use super::super::edit::{flag, integer, items, present, text};
use super::resources;
use super::volumes::Usable;
use crate::field::Path;
use crate::names;

/// What is needed to judge a container besides itself.
struct Context<'a> {
    volumes: &'a Usable<'a>,
    grace_seconds: Option<i64>,
    restart_policy: &'a str,
}

pub(super) fn validate(problems: &mut Problems, path: &Path, spec: &Value, volumes: &Usable<'_>) {
    let context = Context {
        volumes,
        grace_seconds: integer(spec, "/terminationGracePeriodSeconds"),
        restart_policy: text(spec, "/restartPolicy"),
    };
    let (main, init) = (items(spec, "/containers"), items(spec, "/initContainers"));
    let mut names = BTreeSet::new();
    let list = path.child("containers");
    if main.is_empty() {
        problems.required(&list, "");
    }
    for (index, container) in main.iter().enumerate() {
        let path = list.index(index);
        common(problems, &path, container, &context);
        unique_name(problems, &path, container, &mut names);
        hooks_and_probes(problems, &path, container, &context);
        restart_policy(problems, &path, container);
    }
    host_port_conflicts(problems, &list, main);
    let list = path.child("initContainers");
    for (index, container) in init.iter().enumerate() {
        let path = list.index(index);
        common(problems, &path, container, &context);
        restart_policy(problems, &path, container);
        unique_name(problems, &path, container, &mut names);
        host_port_conflicts(problems, &list, std::slice::from_ref(container));
        if text(container, "/restartPolicy") == "Always" {
            hooks_and_probes(problems, &path, container, &context);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if present(container, &format!("/{field}")).is_some() {
                let detail = "may not be set for init containers without restartPolicy=Always";
                problems.forbidden(&path.child(field), detail);
            }
        }
    }
}

fn unique_name<'a>(problems: &mut Problems, path: &Path, container: &'a Value, names: &mut BTreeSet<&'a str>) {
    let name = text(container, "/name");
    if !name.is_empty() && !names.insert(name) {
        problems.duplicate(&path.child("name"), name);
    }
}

fn common(problems: &mut Problems, path: &Path, container: &Value, context: &Context<'_>) {
    match text(container, "/name") {
        "" => problems.required(&path.child("name"), ""),
        name => problems.messages(&path.child("name"), name, names::dns1123_label(name)),
    }
    problems.present(container, "image", path);
    let policies = ["File", "FallbackToLogsOnError"];
    problems.choice(&path.child("terminationMessagePolicy"), text(container, "/terminationMessagePolicy"), &policies);
    ports(problems, &path.child("ports"), container);
    env(problems, path, container);
    mounts(problems, &path.child("volumeMounts"), container, context.volumes);
    devices(problems, &path.child("volumeDevices"), container, context.volumes);
    let policies = ["Always", "IfNotPresent", "Never"];
    problems.choice(&path.child("imagePullPolicy"), text(container, "/imagePullPolicy"), &policies);
    resources::validate(problems, &path.child("resources"), container.get("resources").unwrap_or(&Value::Null));
    resize_policy(problems, &path.child("resizePolicy"), container, context.restart_policy);
    security_context(problems, &path.child("securityContext"), container);
}

fn ports(problems: &mut Problems, path: &Path, container: &Value) {
    let mut names = BTreeSet::new();
    for (index, port) in items(container, "/ports").iter().enumerate() {
        let path = path.index(index);
        let name = text(port, "/name");
        if !name.is_empty() {
            let messages = names::port_name(name);
            if messages.is_empty() && !names.insert(name) {
                problems.duplicate(&path.child("name"), name);
            }
            problems.messages(&path.child("name"), name, messages);
        }
        match integer(port, "/containerPort").unwrap_or_default() {
            0 => problems.required(&path.child("containerPort"), ""),
            number => checks::port_number(problems, &path.child("containerPort"), number),
        }
        if let Some(number) = integer(port, "/hostPort").filter(|n| *n != 0) {
            checks::port_number(problems, &path.child("hostPort"), number);
        }
        problems.choice(&path.child("protocol"), text(port, "/protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_port_conflicts(problems: &mut Problems, path: &Path, containers: &[Value]) {
    let mut taken = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (at, port) in items(container, "/ports").iter().enumerate() {
            let Some(number) = integer(port, "/hostPort").filter(|n| *n != 0) else { continue };
            let socket = format!("{}/{}/{number}", text(port, "/protocol"), text(port, "/hostIP"));
            if !taken.insert(socket.clone()) {
                problems.duplicate(&path.index(index).child("ports").index(at).child("hostPort"), socket);
            }
        }
    }
}

/// Anything printable but `=` may name a variable.
fn env_name(name: &str) -> Vec<String> {
    let printable = |c: char| c == ' ' || c.is_ascii_graphic();
    if name.is_empty() {
        vec!["environment variable name must be non-empty".to_owned()]
    } else if name.chars().all(|c| printable(c) && c != '=') {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ]
    }
}

fn env(problems: &mut Problems, path: &Path, container: &Value) {
    for (index, variable) in items(container, "/env").iter().enumerate() {
        let path = path.child("env").index(index);
        match text(variable, "/name") {
            "" => problems.required(&path.child("name"), ""),
            name => problems.messages(&path.child("name"), name, env_name(name)),
        }
        if let Some(source) = present(variable, "/valueFrom") {
            value_from(problems, &path.child("valueFrom"), source, !text(variable, "/value").is_empty());
        }
    }
    let list = path.child("envFrom");
    for (index, source) in items(container, "/envFrom").iter().enumerate() {
        let prefix = text(source, "/prefix");
        if !prefix.is_empty() {
            problems.messages(&list.index(index).child("prefix"), prefix, env_name(prefix));
        }
        let mut sources = 0;
        for field in ["configMapRef", "secretRef"] {
            if let Some(reference) = present(source, &format!("/{field}")) {
                sources += 1;
                let path = list.index(index).child(field).child("name");
                match text(reference, "/name") {
                    "" => problems.required(&path, ""),
                    name => problems.messages(&path, name, names::dns1123_subdomain(name)),
                }
            }
        }
        match sources {
            0 => problems.invalid(&list, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => problems.invalid(&list, "", "may not have more than one field specified at a time"),
        }
    }
}

fn value_from(problems: &mut Problems, path: &Path, source: &Value, has_value: bool) {
    let mut sources = 0;
    if let Some(selector) = present(source, "/fieldRef") {
        sources += 1;
        resources::field_selector(problems, &path.child("fieldRef"), selector, resources::ENV_FIELDS);
    }
    if let Some(selector) = present(source, "/resourceFieldRef") {
        sources += 1;
        resources::resource_selector(problems, &path.child("resourceFieldRef"), selector, false);
    }
    for field in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(selector) = present(source, &format!("/{field}")) {
            sources += 1;
            let (path, name) = (path.child(field), text(selector, "/name"));
            problems.messages(&path.child("name"), name, names::dns1123_subdomain(name));
            match text(selector, "/key") {
                "" => problems.required(&path.child("key"), ""),
                key => problems.messages(&path.child("key"), key, names::config_key(key)),
            }
        }
    }
    if let Some(selector) = present(source, "/fileKeyRef") {
        sources += 1;
        for field in ["key", "volumeName", "path"] {
            problems.present(selector, field, &path.child("fileKeyRef"));
        }
    }
    match sources {
        0 => problems.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        _ if has_value => problems.invalid(path, "", "may not be specified when `value` is not empty"),
        1 => {}
        _ => problems.invalid(path, "", "may not have more than one field specified at a time"),
    }
}

fn mounts(problems: &mut Problems, list: &Path, container: &Value, volumes: &Usable<'_>) {
    let devices = items(container, "/volumeDevices");
    let mut points = BTreeSet::new();
    for (index, mount) in items(container, "/volumeMounts").iter().enumerate() {
        let path = list.index(index);
        let (name, point) = (text(mount, "/name"), text(mount, "/mountPath"));
        problems.present(mount, "name", &path);
        if !volumes.contains_key(name) {
            problems.not_found(&path.child("name"), name);
        }
        problems.present(mount, "mountPath", &path);
        if !points.insert(point) {
            problems.invalid(&path.child("mountPath"), point, "must be unique");
        }
        if devices.iter().any(|d| text(d, "/name") == name) {
            problems.invalid(&path.child("name"), name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|d| text(d, "/devicePath") == point) {
            problems.invalid(&path.child("mountPath"), point, "must not already exist as a path in volumeDevices");
        }
        let (sub, expression) = (text(mount, "/subPath"), text(mount, "/subPathExpr"));
        checks::descending_path(problems, &list.child("subPath"), sub);
        if !expression.is_empty() && !sub.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            problems.invalid(&path.child("subPathExpr"), expression, detail);
        }
        checks::descending_path(problems, &list.child("subPathExpr"), expression);
        propagation(problems, list, mount, container);
    }
}

fn propagation(problems: &mut Problems, list: &Path, mount: &Value, container: &Value) {
    let modes = ["Bidirectional", "HostToContainer", "None"];
    problems.optional_choice(mount, "mountPropagation", list, &modes);
    let mode = text(mount, "/mountPropagation");
    if mode == "Bidirectional" && !flag(container, "/securityContext/privileged") {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        problems.forbidden(&list.child("mountPropagation"), detail);
    }
    let path = list.child("recursiveReadOnly");
    match text(mount, "/recursiveReadOnly") {
        "" | "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !flag(mount, "/readOnly") {
                problems.forbidden(&path, "may only be specified when readOnly is true");
            }
            if !matches!(mode, "" | "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                problems.forbidden(&path, detail);
            }
        }
        other => problems.not_supported(&path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(problems: &mut Problems, list: &Path, container: &Value, volumes: &Usable<'_>) {
    let mounts = items(container, "/volumeMounts");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in items(container, "/volumeDevices").iter().enumerate() {
        let path = list.index(index);
        let (name, device_path) = (text(device, "/name"), text(device, "/devicePath"));
        problems.present(device, "name", &path);
        if !name.is_empty() && !names.insert(name) {
            problems.invalid(&path.child("name"), name, "must be unique");
        }
        match volumes.get(name) {
            None => problems.not_found(&path.child("name"), name),
            Some(volume) if ["persistentVolumeClaim", "ephemeral"].iter().all(|s| volume.get(s).is_none()) => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                problems.invalid(&path.child("name"), name, detail);
            }
            Some(_) => {}
        }
        problems.present(device, "devicePath", &path);
        if device_path.split('/').any(|part| part == "..") {
            problems.invalid(&path.child("devicePath"), device_path, "can not contain backsteps ('..')");
        } else if !paths.insert(device_path) {
            problems.invalid(&path.child("devicePath"), device_path, "must be unique");
        }
        if mounts.iter().any(|m| text(m, "/name") == name) {
            problems.invalid(&path.child("name"), name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| text(m, "/mountPath") == device_path) {
            let detail = "must not already exist as a path in volumeMounts";
            problems.invalid(&path.child("devicePath"), device_path, detail);
        }
    }
}

fn resize_policy(problems: &mut Problems, path: &Path, container: &Value, pod_restart_policy: &str) {
    let policies = items(container, "/resizePolicy");
    for (index, policy) in policies.iter().enumerate() {
        let (resource, restart) = (text(policy, "/resourceName"), text(policy, "/restartPolicy"));
        if policies[..index].iter().any(|p| text(p, "/resourceName") == resource) {
            problems.duplicate(&path.index(index), resource);
        }
        problems.choice(path, resource, &["cpu", "memory"]);
        problems.choice(path, restart, &["NotRequired", "RestartContainer"]);
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            problems.invalid(path, restart, "must be 'NotRequired' when `restartPolicy` is 'Never'");
        }
    }
}

fn security_context(problems: &mut Problems, path: &Path, container: &Value) {
    let Some(context) = present(container, "/securityContext") else { return };
    checks::id(problems, path, context, "runAsUser");
    checks::id(problems, path, context, "runAsGroup");
    problems.optional_choice(context, "procMount", path, &["Default", "Unmasked"]);
    seccomp(problems, &path.child("seccompProfile"), context);
    if context.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        if flag(context, "/privileged") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            problems.invalid(path, context.clone(), detail);
        }
        if items(context, "/capabilities/add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            problems.invalid(path, context.clone(), detail);
        }
    }
}

pub(super) fn seccomp(problems: &mut Problems, path: &Path, context: &Value) {
    let Some(profile) = present(context, "/seccompProfile") else { return };
    let (ty, file) = (text(profile, "/type"), present(profile, "/localhostProfile").and_then(Value::as_str));
    match ty {
        "" => problems.required(&path.child("type"), "type is required when seccompProfile is set"),
        _ => problems.choice(&path.child("type"), ty, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    match (ty, file) {
        ("Localhost", Some(file)) => checks::descending_path(problems, &path.child("localhostProfile"), file),
        ("Localhost", None) => {
            problems.required(&path.child("localhostProfile"), "must be set when seccomp type is Localhost");
        }
        (_, Some(_)) => {
            let detail = "can only be set when seccomp type is Localhost";
            problems.invalid(&path.child("localhostProfile"), profile.clone(), detail);
        }
        (_, None) => {}
    }
}

fn restart_policy(problems: &mut Problems, path: &Path, container: &Value) {
    let rules = items(container, "/restartPolicyRules");
    match text(container, "/restartPolicy") {
        "" if rules.is_empty() => {}
        "" => {
            let detail = "must specify restartPolicy when restart rules are used";
            problems.required(&path.child("restartPolicy"), detail);
        }
        policy => problems.choice(&path.child("restartPolicy"), policy, &["Always", "Never", "OnFailure"]),
    }
}

fn hooks_and_probes(problems: &mut Problems, path: &Path, container: &Value, context: &Context<'_>) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = present(container, &format!("/lifecycle/{hook}")) {
            self::handler(problems, &path.child("lifecycle").child(hook), handler, context.grace_seconds);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = present(container, &format!("/{name}")) else { continue };
        let path = path.child(name);
        handler(problems, &path, probe, context.grace_seconds);
        for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            checks::non_negative(problems, &path, probe, field);
        }
        let grace = integer(probe, "/terminationGracePeriodSeconds");
        if let Some(seconds) = grace.filter(|s| *s <= 0) {
            problems.invalid(&path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
        }
        if name == "readinessProbe" {
            if let Some(seconds) = grace {
                let detail = "must not be set for readinessProbes";
                problems.invalid(&path.child("terminationGracePeriodSeconds"), seconds, detail);
            }
        } else {
            let successes = integer(probe, "/successThreshold").unwrap_or_default();
            if successes != 1 {
                problems.invalid(&path.child("successThreshold"), successes, "must be 1");
            }
        }
    }
}

/// A probe's or a hook's action: exactly one of five.
fn handler(problems: &mut Problems, path: &Path, handler: &Value, grace_seconds: Option<i64>) {
    let mut found = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"]
        .into_iter()
        .filter_map(|kind| present(handler, &format!("/{kind}")).map(|action| (kind, action)));
    let Some((kind, action)) = found.next() else {
        problems.required(path, "must specify a handler type");
        return;
    };
    let at = path.child(kind);
    match kind {
        "exec" if items(action, "/command").is_empty() => problems.required(&at.child("command"), ""),
        "httpGet" => {
            problems.present(action, "path", &at);
            port_or_name(problems, &at.child("port"), action);
            problems.choice(&at.child("scheme"), text(action, "/scheme"), &["HTTP", "HTTPS"]);
            for header in items(action, "/httpHeaders") {
                let name = text(header, "/name");
                if name.is_empty() || !name.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric()) {
                    let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
                    problems.invalid(&at.child("httpHeaders"), name, detail);
                }
            }
        }
        "tcpSocket" | "grpc" => port_or_name(problems, &at.child("port"), action),
        "sleep" => {
            let seconds = integer(action, "/seconds").unwrap_or_default();
            if let Some(grace) = grace_seconds.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                problems.invalid(&at, seconds, detail);
            }
        }
        _ => {}
    }
    for (kind, _) in found {
        problems.forbidden(&path.child(kind), "may not specify more than 1 handler type");
    }
}

fn port_or_name(problems: &mut Problems, path: &Path, action: &Value) {
    match action.get("port") {
        Some(Value::String(name)) => problems.messages(path, name, names::port_name(name)),
        port => checks::port_number(problems, path, port.and_then(Value::as_i64).unwrap_or_default()),
    }
}
