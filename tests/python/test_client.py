"""The official Python client against Tether's API server: what a script or an operator in Python relies on.

Runs against the cluster of $KUBECONFIG; every test has a namespace of its own. `crates/tether/tests/python.rs` starts it.
"""

import json
import logging
import threading
import unittest
import uuid

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

# A watch that misses its event ends here instead of hanging the tests.
WATCH_SECONDS = 20

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def setUpModule():
    config.load_kube_config()


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def config_map(name, data=None, labels=None):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels or {}}, "data": data or {}}


def pod(name, **spec):
    containers = [{"name": "main", "image": "none"}]
    spec = {"automountServiceAccountToken": False, "containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Case(unittest.TestCase):
    def setUp(self):
        self.core = client.CoreV1Api()
        self.namespace = unique("py")
        self.core.create_namespace({"metadata": {"name": self.namespace}})
        self.addCleanup(self.core.delete_namespace, self.namespace)

    def create(self, name, data=None, labels=None):
        return self.core.create_namespaced_config_map(self.namespace, config_map(name, data, labels))

    def assertStatus(self, code, reason, function, *args, **kwargs):
        """Expects an error answer and returns the Status in its body."""
        with self.assertRaises(ApiException) as caught:
            function(*args, **kwargs)
        self.assertEqual(caught.exception.status, code, caught.exception.body)
        status = json.loads(caught.exception.body)
        self.assertEqual((status["kind"], status["code"], status["reason"]), ("Status", code, reason))
        return status

    def wait_for(self, list_function, condition, **kwargs):
        """Lists, then watches from there, until an object satisfies the condition."""
        found = list_function(**kwargs)
        for item in found.items:
            if condition(item):
                return item
        version = found.metadata.resource_version
        for event in watch.Watch().stream(list_function, resource_version=version, timeout_seconds=WATCH_SECONDS, **kwargs):
            if event["type"] != "DELETED" and condition(event["object"]):
                return event["object"]
        self.fail("the condition never came true")


class Objects(Case):
    def test_create_read_replace_delete(self):
        created = self.create("one", {"a": "1"})
        self.assertTrue(created.metadata.uid)
        self.assertEqual(created.metadata.namespace, self.namespace)
        read = self.core.read_namespaced_config_map("one", self.namespace)
        self.assertEqual(read.data, {"a": "1"})
        read.data = {"a": "2"}
        replaced = self.core.replace_namespaced_config_map("one", self.namespace, read)
        self.assertGreater(int(replaced.metadata.resource_version), int(created.metadata.resource_version))
        self.assertEqual(replaced.metadata.uid, created.metadata.uid)
        gone = self.core.delete_namespaced_config_map("one", self.namespace)
        self.assertEqual(gone["status"] if isinstance(gone, dict) else gone.status, "Success")
        status = self.assertStatus(404, "NotFound", self.core.read_namespaced_config_map, "one", self.namespace)
        self.assertEqual(status["details"], {"name": "one", "kind": "configmaps"})

    def test_a_second_create_is_a_conflict(self):
        self.create("one")
        status = self.assertStatus(409, "AlreadyExists", self.create, "one")
        self.assertEqual(status["message"], 'configmaps "one" already exists')

    def test_a_lost_race_is_a_conflict(self):
        mine = self.create("one", {"n": "0"})
        theirs = self.core.read_namespaced_config_map("one", self.namespace)
        theirs.data = {"n": "1"}
        self.core.replace_namespaced_config_map("one", self.namespace, theirs)
        mine.data = {"n": "2"}
        self.assertStatus(409, "Conflict", self.core.replace_namespaced_config_map, "one", self.namespace, mine)
        self.assertEqual(self.core.read_namespaced_config_map("one", self.namespace).data, {"n": "1"})

    def test_racing_counters_lose_nothing(self):
        self.create("counter", {"n": "0"})
        done = []

        def count():
            for _ in range(5):
                while True:
                    counter = self.core.read_namespaced_config_map("counter", self.namespace)
                    counter.data["n"] = str(int(counter.data["n"]) + 1)
                    try:
                        self.core.replace_namespaced_config_map("counter", self.namespace, counter)
                        break
                    except ApiException as error:
                        if error.status != 409:
                            raise
            done.append(True)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(done), 4)
        self.assertEqual(self.core.read_namespaced_config_map("counter", self.namespace).data["n"], "20")

    def test_an_invalid_object_lists_its_causes(self):
        bad = {"metadata": {"name": "bad"}, "spec": {"containers": [{"name": "Upper", "image": ""}], "restartPolicy": "Odd"}}
        status = self.assertStatus(422, "Invalid", self.core.create_namespaced_pod, self.namespace, bad)
        causes = {(cause["field"], cause["reason"]) for cause in status["details"]["causes"]}
        self.assertLessEqual(
            {
                ("spec.containers[0].name", "FieldValueInvalid"),
                ("spec.containers[0].image", "FieldValueRequired"),
                ("spec.restartPolicy", "FieldValueNotSupported"),
            },
            causes,
        )

    def test_dry_run_leaves_nothing(self):
        made = self.core.create_namespaced_config_map(self.namespace, config_map("dry"), dry_run="All")
        self.assertTrue(made.metadata.uid)
        self.assertStatus(404, "NotFound", self.core.read_namespaced_config_map, "dry", self.namespace)

    def test_generated_names_differ(self):
        names = {
            self.core.create_namespaced_config_map(self.namespace, {"metadata": {"generateName": "gen-"}}).metadata.name
            for _ in range(3)
        }
        self.assertEqual(len(names), 3)
        self.assertTrue(all(len(name) == len("gen-") + 5 for name in names))

    def test_binary_data_comes_back(self):
        secret = {"metadata": {"name": "s"}, "stringData": {"text": "ä"}, "data": {"raw": "AP8="}}
        self.core.create_namespaced_secret(self.namespace, secret)
        data = self.core.read_namespaced_secret("s", self.namespace).data
        self.assertEqual(data, {"text": "w6Q=", "raw": "AP8="})


class Patches(Case):
    def patch(self, body, content_type, **kwargs):
        return self.core.patch_namespaced_pod("p", self.namespace, body, _content_type=content_type, **kwargs)

    def setUp(self):
        super().setUp()
        self.wait_for(self.core.list_namespaced_service_account, lambda sa: sa.metadata.name == "default", namespace=self.namespace)
        self.core.create_namespaced_pod(self.namespace, pod("p", containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]))

    def test_strategic_merge_goes_by_key(self):
        patched = self.patch({"spec": {"containers": [{"name": "b", "image": "2"}]}}, STRATEGIC)
        self.assertEqual([(c.name, c.image) for c in patched.spec.containers], [("a", "1"), ("b", "2")])

    def test_merge_patch_replaces_maps_key_by_key(self):
        self.patch({"metadata": {"labels": {"x": "1", "y": "1"}}}, MERGE)
        patched = self.patch({"metadata": {"labels": {"x": None, "z": "1"}}}, MERGE)
        self.assertEqual(patched.metadata.labels, {"y": "1", "z": "1"})

    def test_json_patch_runs_in_order_or_not_at_all(self):
        self.patch({"metadata": {"labels": {"n": "1"}}}, MERGE)
        steps = [
            {"op": "test", "path": "/metadata/labels/n", "value": "1"},
            {"op": "replace", "path": "/metadata/labels/n", "value": "2"},
            {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
        ]
        patched = self.core.patch_namespaced_pod("p", self.namespace, steps)
        self.assertEqual((patched.metadata.labels["n"], patched.metadata.annotations), ("2", {"a": "b"}))
        with self.assertRaises(ApiException) as caught:
            self.core.patch_namespaced_pod("p", self.namespace, steps)
        self.assertEqual(caught.exception.status, 422)

    def test_status_has_a_door_of_its_own(self):
        patched = self.core.patch_namespaced_pod_status("p", self.namespace, {"status": {"phase": "Running"}}, _content_type=MERGE)
        self.assertEqual(patched.status.phase, "Running")
        patched = self.patch({"status": {"phase": "Failed"}}, MERGE)
        self.assertEqual(patched.status.phase, "Running")

    def test_an_unknown_patch_type_is_refused(self):
        self.assertStatus(415, "UnsupportedMediaType", self.patch, {}, "application/odd+json")


class ServerSideApply(Case):
    def apply(self, manager, data, **kwargs):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": data}
        return self.core.patch_namespaced_config_map(
            "shared", self.namespace, body, field_manager=manager, _content_type=APPLY, **kwargs
        )

    def test_fields_have_owners(self):
        self.apply("me", {"a": "1", "b": "1"})
        status = self.assertStatus(409, "Conflict", self.apply, "you", {"b": "2"})
        self.assertEqual(
            status["details"]["causes"],
            [{"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".data.b"}],
        )
        self.assertEqual(self.apply("you", {"b": "2"}, force=True).data, {"a": "1", "b": "2"})
        self.assertEqual(self.apply("me", {}).data, {"b": "2"})
        owners = {(f.manager, f.operation): f.fields_v1 for f in self.apply("you", {"b": "2"}).metadata.managed_fields}
        self.assertEqual(owners, {("me", "Apply"): {"f:data": {}}, ("you", "Apply"): {"f:data": {"f:b": {}}}})

    def test_applying_the_same_changes_nothing(self):
        first = self.apply("me", {"a": "1"})
        self.assertEqual(self.apply("me", {"a": "1"}).metadata.resource_version, first.metadata.resource_version)

    def test_a_manager_must_be_named(self):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}}
        patch = self.core.patch_namespaced_config_map
        self.assertStatus(422, "Invalid", patch, "shared", self.namespace, body, _content_type=APPLY)


class Lists(Case):
    def test_pages_are_one_consistent_list(self):
        for i in range(7):
            self.create(f"c{i}", labels={"set": "pages"})
        names, token, version = [], None, None
        while True:
            page = self.core.list_namespaced_config_map(self.namespace, label_selector="set=pages", limit=3, _continue=token)
            names += [item.metadata.name for item in page.items]
            version = version or page.metadata.resource_version
            self.assertEqual(page.metadata.resource_version, version)
            token = page.metadata._continue
            if not token:
                break
            # What is written between two pages belongs to neither.
            self.create(f"z{len(names)}", labels={"set": "pages"})
        self.assertEqual(names, [f"c{i}" for i in range(7)])

    def test_selectors(self):
        for name, tier in (("a", "front"), ("b", "back"), ("c", "back")):
            self.create(name, labels={"tier": tier})

        def names(**kwargs):
            return [item.metadata.name for item in self.core.list_namespaced_config_map(self.namespace, **kwargs).items]

        self.assertEqual(names(label_selector="tier=back"), ["b", "c"])
        self.assertEqual(names(label_selector="tier in (front, back),tier!=back"), ["a"])
        self.assertEqual(names(field_selector="metadata.name=b"), ["b"])
        self.assertStatus(400, "BadRequest", names, label_selector="tier in (")
        self.assertStatus(400, "BadRequest", names, field_selector="data.x=1")

    def test_a_broken_continue_token(self):
        listing = self.core.list_namespaced_config_map
        self.assertStatus(400, "BadRequest", listing, self.namespace, limit=1, _continue="nonsense")

    def test_delete_collection_takes_the_selected(self):
        for name in ("a", "b", "c"):
            self.create(name, labels={"keep": str(name == "c")})
        self.core.delete_collection_namespaced_config_map(self.namespace, label_selector="keep=False")
        left = self.core.list_namespaced_config_map(self.namespace, label_selector="keep").items
        self.assertEqual([item.metadata.name for item in left], ["c"])


class Watches(Case):
    def stream(self, **kwargs):
        kwargs = {"namespace": self.namespace, "label_selector": "set", "timeout_seconds": WATCH_SECONDS, **kwargs}
        return watch.Watch().stream(self.core.list_namespaced_config_map, **kwargs)

    def test_every_change_in_order(self):
        start = self.core.list_namespaced_config_map(self.namespace).metadata.resource_version
        self.create("one", {"n": "0"}, {"set": "w"})
        for n in range(1, 4):
            self.core.patch_namespaced_config_map("one", self.namespace, {"data": {"n": str(n)}})
        self.core.delete_namespaced_config_map("one", self.namespace)
        seen = []
        for event in self.stream(resource_version=start):
            seen.append((event["type"], event["object"].data["n"]))
            if event["type"] == "DELETED":
                break
        self.assertEqual(seen, [("ADDED", "0"), ("MODIFIED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3"), ("DELETED", "3")])

    def test_resuming_continues_after_the_last_event(self):
        start = self.core.list_namespaced_config_map(self.namespace).metadata.resource_version
        for n in range(4):
            self.create(f"c{n}", labels={"set": "w"})
        first = next(iter(self.stream(resource_version=start)))["object"]
        rest = []
        for event in self.stream(resource_version=first.metadata.resource_version):
            rest.append(event["object"].metadata.name)
            if len(rest) == 3:
                break
        self.assertEqual((first.metadata.name, rest), ("c0", ["c1", "c2", "c3"]))

    def test_leaving_the_selection_reads_as_deletion(self):
        made = self.create("one", labels={"set": "w"})
        self.core.patch_namespaced_config_map("one", self.namespace, {"metadata": {"labels": {"set": None}}})
        event = next(iter(self.stream(resource_version=made.metadata.resource_version)))
        self.assertEqual((event["type"], event["object"].metadata.name), ("DELETED", "one"))

    def test_a_streaming_list_ends_with_a_bookmark(self):
        self.create("one", labels={"set": "w"})
        events = []
        stream = self.stream(send_initial_events=True, resource_version_match="NotOlderThan", allow_watch_bookmarks=True)
        for event in stream:
            raw = event["raw_object"]
            events.append((event["type"], raw["metadata"].get("name"), raw["metadata"].get("annotations")))
            if event["type"] == "BOOKMARK":
                break
        self.assertEqual(events, [("ADDED", "one", None), ("BOOKMARK", None, {"k8s.io/initial-events-end": "true"})])

    def test_a_version_from_the_future_is_refused(self):
        now = int(self.core.list_namespaced_config_map(self.namespace).metadata.resource_version)
        listing = self.core.list_namespaced_config_map
        self.assertStatus(504, "Timeout", listing, self.namespace, resource_version=str(now + 10_000_000), resource_version_match="NotOlderThan")

    def test_an_informer_follows(self):
        from kubernetes.informer import SharedInformer

        # Stopping cuts its connection, which it would log with a traceback.
        logging.getLogger("kubernetes.informer").setLevel(logging.CRITICAL)
        informer = SharedInformer(self.core.list_namespaced_config_map, namespace=self.namespace, label_selector="set")
        added, changed, gone = threading.Event(), threading.Event(), threading.Event()
        informer.add_event_handler("ADDED", lambda obj: added.set())
        informer.add_event_handler("MODIFIED", lambda obj: changed.set())
        informer.add_event_handler("DELETED", lambda obj: gone.set())
        informer.start()
        self.addCleanup(informer.stop)
        self.create("one", labels={"set": "w"})
        self.assertTrue(added.wait(WATCH_SECONDS))
        self.core.patch_namespaced_config_map("one", self.namespace, {"data": {"n": "1"}})
        self.assertTrue(changed.wait(WATCH_SECONDS))
        self.core.delete_namespaced_config_map("one", self.namespace)
        self.assertTrue(gone.wait(WATCH_SECONDS))


class Deletion(Case):
    def test_finalizers_hold_and_release(self):
        self.core.create_namespaced_config_map(self.namespace, {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}})
        self.core.delete_namespaced_config_map("held", self.namespace)
        held = self.core.read_namespaced_config_map("held", self.namespace)
        self.assertIsNotNone(held.metadata.deletion_timestamp)
        self.core.patch_namespaced_config_map("held", self.namespace, {"metadata": {"finalizers": None}}, _content_type=MERGE)
        self.assertStatus(404, "NotFound", self.core.read_namespaced_config_map, "held", self.namespace)

    def test_preconditions_protect_a_successor(self):
        self.create("one")
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="someone-else"))
        delete = self.core.delete_namespaced_config_map
        self.assertStatus(409, "Conflict", delete, "one", self.namespace, body=options)
        self.core.read_namespaced_config_map("one", self.namespace)

    def test_dependants_follow_their_owner(self):
        for policy, survives in (("Background", False), ("Foreground", False), ("Orphan", True)):
            with self.subTest(policy):
                owner, child = unique("owner"), unique("child")
                uid = self.create(owner).metadata.uid
                reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": True}
                made = self.core.create_namespaced_config_map(
                    self.namespace, {"metadata": {"name": child, "ownerReferences": [reference]}}
                )
                self.core.delete_namespaced_config_map(owner, self.namespace, propagation_policy=policy)
                selector, version = f"metadata.name={child}", made.metadata.resource_version
                for event in watch.Watch().stream(
                    self.core.list_namespaced_config_map, self.namespace, field_selector=selector,
                    resource_version=version, timeout_seconds=WATCH_SECONDS,
                ):
                    released = event["type"] == "MODIFIED" and not event["object"].metadata.owner_references
                    if event["type"] == "DELETED" or released:
                        break
                self.assertEqual(released, survives)

    def test_a_pod_on_a_node_gets_its_grace(self):
        self.wait_for(self.core.list_namespaced_service_account, lambda sa: sa.metadata.name == "default", namespace=self.namespace)
        self.core.create_namespaced_pod(self.namespace, pod("p", nodeName="nobody"))
        going = self.core.delete_namespaced_pod("p", self.namespace, grace_period_seconds=7)
        self.assertEqual(going.metadata.deletion_grace_period_seconds, 7)
        eviction = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 0}}
        self.core.create_namespaced_pod_eviction("p", self.namespace, eviction)
        self.assertStatus(404, "NotFound", self.core.read_namespaced_pod, "p", self.namespace)


class CustomResources(Case):
    group, version, plural = "py.example.org", "v1", "boats"

    @classmethod
    def setUpClass(cls):
        schema = {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "crew": {"type": "integer", "minimum": 0},
                        "colour": {"type": "string", "default": "red"},
                        "ports": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["name"],
                            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                        },
                    },
                },
                "status": {"type": "object", "properties": {"afloat": {"type": "boolean"}}},
            },
        }
        scale = {"specReplicasPath": ".spec.crew", "statusReplicasPath": ".status.crew"}
        version = {"name": cls.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        version["subresources"] = {"status": {}, "scale": scale}
        names = {"plural": cls.plural, "singular": "boat", "kind": "Boat"}
        crd = {"metadata": {"name": f"{cls.plural}.{cls.group}"}}
        crd["spec"] = {"group": cls.group, "scope": "Namespaced", "names": names, "versions": [version]}
        extensions = client.ApiextensionsV1Api()
        extensions.create_custom_resource_definition(crd)
        cls.addClassCleanup(extensions.delete_custom_resource_definition, crd["metadata"]["name"])
        for event in watch.Watch().stream(extensions.list_custom_resource_definition, timeout_seconds=WATCH_SECONDS):
            conditions = event["object"].status and event["object"].status.conditions or []
            mine = event["object"].metadata.name == crd["metadata"]["name"]
            if mine and any(c.type == "Established" and c.status == "True" for c in conditions):
                break

    def setUp(self):
        super().setUp()
        self.custom = client.CustomObjectsApi()
        self.where = (self.group, self.version, self.namespace, self.plural)

    def boat(self, name, **spec):
        return {"apiVersion": f"{self.group}/{self.version}", "kind": "Boat", "metadata": {"name": name}, "spec": spec}

    def test_defaults_pruning_and_generation(self):
        made = self.custom.create_namespaced_custom_object(*self.where, self.boat("b", crew=1, lost=True))
        self.assertEqual((made["spec"], made["metadata"]["generation"]), ({"crew": 1, "colour": "red"}, 1))
        patched = self.custom.patch_namespaced_custom_object(*self.where, "b", {"spec": {"crew": 2}})
        self.assertEqual(patched["metadata"]["generation"], 2)
        status = self.custom.patch_namespaced_custom_object_status(*self.where, "b", {"status": {"afloat": True}, "spec": {"crew": 9}})
        self.assertEqual((status["status"], status["spec"]["crew"], status["metadata"]["generation"]), ({"afloat": True}, 2, 2))

    def test_validation(self):
        status = self.assertStatus(422, "Invalid", self.custom.create_namespaced_custom_object, *self.where, self.boat("b", crew=-1))
        self.assertEqual(status["details"]["causes"][0]["field"], "spec.crew")
        self.assertEqual(status["details"]["group"], self.group)

    def test_scale(self):
        self.custom.create_namespaced_custom_object(*self.where, self.boat("b", crew=1))
        scaled = self.custom.patch_namespaced_custom_object_scale(*self.where, "b", {"spec": {"replicas": 3}})
        self.assertEqual(scaled["spec"]["replicas"], 3)
        self.assertEqual(self.custom.get_namespaced_custom_object(*self.where, "b")["spec"]["crew"], 3)

    def test_dynamic_client(self):
        boats = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version=f"{self.group}/{self.version}", kind="Boat")
        applied = boats.server_side_apply(
            body=self.boat("d", crew=1, ports=[{"name": "kiel"}]), namespace=self.namespace, field_manager="one"
        )
        self.assertEqual(applied.spec.colour, "red")
        boats.server_side_apply(body=self.boat("d", ports=[{"name": "rom"}]), namespace=self.namespace, field_manager="two")
        merged = boats.get(name="d", namespace=self.namespace)
        self.assertEqual([port.name for port in merged.spec.ports], ["kiel", "rom"])
        self.assertEqual([item.metadata.name for item in boats.get(namespace=self.namespace).items], ["d"])
        boats.delete(name="d", namespace=self.namespace)
        with self.assertRaises(dynamic.exceptions.NotFoundError):
            boats.get(name="d", namespace=self.namespace)


class Identities(Case):
    def as_token(self, token):
        mine = client.Configuration.get_default_copy()
        theirs = client.Configuration()
        theirs.host, theirs.ssl_ca_cert = mine.host, mine.ssl_ca_cert
        theirs.api_key = {"authorization": f"Bearer {token}"}
        return client.CoreV1Api(client.ApiClient(theirs))

    def test_a_service_account_may_what_its_role_says(self):
        self.core.create_namespaced_service_account(self.namespace, {"metadata": {"name": "robot"}})
        request = {"spec": {"expirationSeconds": 600}}
        token = self.core.create_namespaced_service_account_token("robot", self.namespace, request).status.token
        robot = self.as_token(token)
        status = self.assertStatus(403, "Forbidden", robot.list_namespaced_secret, self.namespace)
        self.assertIn(f"system:serviceaccount:{self.namespace}:robot", status["message"])
        rbac = client.RbacAuthorizationV1Api()
        rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}]
        rbac.create_namespaced_role(self.namespace, {"metadata": {"name": "r"}, "rules": rules})
        subjects = [{"kind": "ServiceAccount", "name": "robot", "namespace": self.namespace}]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
        rbac.create_namespaced_role_binding(self.namespace, {"metadata": {"name": "b"}, "subjects": subjects, "roleRef": reference})
        self.assertEqual(robot.list_namespaced_secret(self.namespace).items, [])
        self.assertStatus(403, "Forbidden", robot.create_namespaced_secret, self.namespace, {"metadata": {"name": "s"}})

    def test_a_wrong_token_is_unauthorized(self):
        status = self.assertStatus(401, "Unauthorized", self.as_token("nonsense").list_node)
        self.assertEqual(status["message"], "Unauthorized")

    def test_reviews(self):
        attributes = {"namespace": self.namespace, "verb": "delete", "resource": "pods"}
        authorization = client.AuthorizationV1Api()
        mine = authorization.create_self_subject_access_review({"spec": {"resourceAttributes": attributes}})
        self.assertTrue(mine.status.allowed)
        theirs = authorization.create_subject_access_review({"spec": {"user": "nobody", "resourceAttributes": attributes}})
        self.assertFalse(theirs.status.allowed)


class Clusters(Case):
    def test_versions_and_groups(self):
        self.assertEqual(client.VersionApi().get_code().major, "1")
        groups = {group.name for group in client.ApisApi().get_api_versions().groups}
        self.assertLessEqual({"storage.k8s.io", "coordination.k8s.io", "apiextensions.k8s.io"}, groups)

    def test_one_leader_at_a_time(self):
        leases = client.CoordinationV1Api()
        lease = leases.create_namespaced_lease(self.namespace, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
        rival = leases.read_namespaced_lease("l", self.namespace)
        lease.spec.holder_identity = "b"
        leases.replace_namespaced_lease("l", self.namespace, lease)
        rival.spec.holder_identity = "c"
        self.assertStatus(409, "Conflict", leases.replace_namespaced_lease, "l", self.namespace, rival)
        self.assertEqual(leases.read_namespaced_lease("l", self.namespace).spec.holder_identity, "b")

    def test_storage_objects(self):
        storage = client.StorageV1Api()
        name = unique("class")
        storage.create_storage_class({"metadata": {"name": name}, "provisioner": "driver.example.org"})
        self.addCleanup(storage.delete_storage_class, name)
        self.assertEqual(storage.read_storage_class(name).volume_binding_mode, "Immediate")
        attachment = unique("attachment")
        source = {"persistentVolumeName": "pv"}
        storage.create_volume_attachment(
            {"metadata": {"name": attachment}, "spec": {"attacher": "driver.example.org", "nodeName": "n", "source": source}}
        )
        self.addCleanup(storage.delete_volume_attachment, attachment)
        patched = storage.patch_volume_attachment_status(attachment, {"status": {"attached": True}}, _content_type=MERGE)
        self.assertTrue(patched.status.attached)


if __name__ == "__main__":
    unittest.main()
