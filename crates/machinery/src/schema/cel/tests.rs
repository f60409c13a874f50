//! Rules evaluated: values, transitions, budgets and the library that Kubernetes adds.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::compile;

/// A schema with one rule on `spec`.
fn schema_with(properties: &Value, rule: &Value) -> Arc<Schema> {
    compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties,
        "x-kubernetes-validations": [rule]}}}))
    .unwrap()
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Evaluates an expression over nothing.
fn eval(source: &str) -> Result<String, Fault> {
    let program = program::parse(source).unwrap_or_else(|e| panic!("{source}: {e}"));
    let mut meter = Meter::new(RULE_COST_LIMIT);
    let value = Eval::new(Vec::new(), &mut meter).run(program.expression())?;
    Ok(match &value {
        Val::Bool(flag) => flag.to_string(),
        other => format!("{other:?}"),
    })
}

#[test]
fn the_language_and_its_libraries() {
    let truths = [
        // arithmetic and comparison
        "1 + 2 * 3 == 7",
        "7 / 2 == 3",
        "-7 % 3 == -1",
        "1.5 + 1.5 == 3.0",
        "1 < 2.5",
        "2u > 1",
        "!(1 == 2)",
        "'a' + 'b' == 'ab'",
        "b'ab' == bytes('ab')",
        "[1] + [2, 3] == [1, 2, 3]",
        "'abc' < 'abd'",
        "1 == 1.0",
        "{'a': 1} == {'a': 1}",
        "[1, 2] != [2, 1]",
        "null == null",
        "true || 1 / 0 == 1",
        "1 / 0 == 1 || true",
        "!(false && 1 / 0 == 1)",
        "true ? true : 1 / 0 == 1",
        // membership, macros
        "2 in [1, 2]",
        "'a' in {'a': 1}",
        "!('b' in {'a': 1})",
        "has({'a': 1}.a)",
        "!has({'a': 1}.b)",
        "[1, 2, 3].all(x, x > 0)",
        "[1, 2, 3].exists(x, x == 2)",
        "[1, 2, 2].exists_one(x, x == 1)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "[1, 2, 3].filter(x, x > 1) == [2, 3]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "[1, 0].exists(x, 1 / x == 1)",
        "[10, 20].all(i, v, v == (i + 1) * 10)",
        "{'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "{'a': 1, 'b': 1}.existsOne(k, v, k == 'b')",
        "[1, 2].transformList(i, v, i + v) == [1, 3]",
        "{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v * 10) == {'b': 20}",
        // conversions and types
        "int('12') == 12",
        "int(2.9) == 2",
        "double('1.5') == 1.5",
        "string(12) == '12'",
        "string(1.5) == '1.5'",
        "string(true) == 'true'",
        "uint(3) == 3u",
        "bool('true')",
        "type(1) == int",
        "type('a') == string",
        "type([1]) == list",
        "type(duration('1s')) == google.protobuf.Duration",
        "type(ip('::1')) == net.IP",
        "{'a': 1}.transformMapEntry(k, v, {k + '2': v + 1}) == {'a2': 2}",
        "'%e'.format([3.14]) == '3.140000×10⁰⁰'",
        "dyn(1) == 1",
        // times
        "duration('1h') == duration('60m')",
        "duration('90s').getMinutes() == 1",
        "duration('1h') > duration('1m')",
        "timestamp('2024-01-01T00:00:00Z') + duration('1h') == timestamp('2024-01-01T01:00:00Z')",
        "timestamp('2024-03-01T00:00:00Z').getMonth() == 2",
        "string(duration('90s')) == '90s'",
        "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
        // texts
        "size('häß') == 3",
        "'abc'.size() == 3",
        "'abc'.contains('b')",
        "'abc'.startsWith('ab')",
        "'abc'.endsWith('bc')",
        "'abc'.matches('^a.c$')",
        "!'abc'.matches('^b')",
        "matches('a1', r'^\\w\\d$')",
        "'AbC'.lowerAscii() == 'abc'",
        "'AbC'.upperAscii() == 'ABC'",
        "' a '.trim() == 'a'",
        "'a,b,c'.split(',') == ['a', 'b', 'c']",
        "'a,b,c'.split(',', 2) == ['a', 'b,c']",
        "'abc'.split('') == ['a', 'b', 'c']",
        "['a', 'b'].join('-') == 'a-b'",
        "['a', 'b'].join() == 'ab'",
        "'hello'.indexOf('l') == 2",
        "'hello'.indexOf('l', 3) == 3",
        "'hello'.lastIndexOf('l') == 3",
        "'hello'.indexOf('x') == -1",
        "'häl'.indexOf('l') == 2",
        "'hello'.substring(1, 3) == 'el'",
        "'hello'.substring(3) == 'lo'",
        "'hello'.charAt(1) == 'e'",
        "'aaa'.replace('a', 'b') == 'bbb'",
        "'aaa'.replace('a', 'b', 2) == 'bba'",
        "'abc 123'.find('[0-9]+') == '123'",
        "'a1b2'.findAll('[0-9]') == ['1', '2']",
        "'a1b2'.findAll('[0-9]', 1) == ['1']",
        "'none'.find('[0-9]') == ''",
        "'%s has %d'.format(['x', 3]) == 'x has 3'",
        "'%.2f %x %b'.format([1.0, 255, 5]) == '1.00 ff 101'",
        "strings.quote('a\"b') == '\"a\\\\\"b\"'",
        // lists and sets
        "[1, 2, 3].isSorted()",
        "![2, 1].isSorted()",
        "[].isSorted()",
        "[1, 2].sum() == 3",
        "[].sum() == 0",
        "[1.5, 2.5].sum() == 4.0",
        "[3, 1, 2].min() == 1",
        "['a', 'c', 'b'].max() == 'c'",
        "[1, 2, 2].indexOf(2) == 1",
        "[1, 2, 2].lastIndexOf(2) == 2",
        "[1, 1, 2].distinct() == [1, 2]",
        "[[1], [2]].flatten() == [1, 2]",
        "[1, 2, 3].reverse() == [3, 2, 1]",
        "[1, 2, 3].slice(1, 3) == [2, 3]",
        "[3, 1, 2].sort() == [1, 2, 3]",
        "['aa', 'b'].sortBy(x, size(x)) == ['b', 'aa']",
        "lists.range(3) == [0, 1, 2]",
        "[1, 2].first().value() == 1",
        "!([].last().hasValue())",
        "sets.contains([1, 2], [2])",
        "sets.equivalent([1, 2], [2, 1, 1])",
        "sets.intersects([1], [1, 2])",
        "!sets.intersects([1], [2])",
        // optionals
        "optional.of(1).hasValue()",
        "!optional.none().hasValue()",
        "optional.none().orValue(2) == 2",
        "{'a': 1}.?a.orValue(0) == 1",
        "{'a': 1}.?b.orValue(7) == 7",
        "[1][?5].orValue(9) == 9",
        "{'a': {'b': 1}}.?a.?b.value() == 1",
        "optional.of(2).optMap(x, x * 2).value() == 4",
        "[?optional.none(), 1] == [1]",
        "{?'a': optional.none()} == {}",
        "!optional.ofNonZeroValue('').hasValue()",
        // what Kubernetes adds
        "quantity('1Gi').isGreaterThan(quantity('1G'))",
        "quantity('500m').asApproximateFloat() == 0.5",
        "quantity('2k').asInteger() == 2000",
        "!quantity('1.5').isInteger()",
        "isQuantity('1Ei')",
        "!isQuantity('1Zx')",
        "quantity('1').add(quantity('2')).compareTo(quantity('3')) == 0",
        "quantity('3').sub(1) == quantity('2')",
        "quantity('-1').sign() == -1",
        "url('https://a.b:80/c?d=e&d=f').getHost() == 'a.b:80'",
        "url('https://a.b:80/c').getHostname() == 'a.b'",
        "url('https://a.b:80/c').getPort() == '80'",
        "url('https://a/c%20d').getEscapedPath() == '/c%20d'",
        "url('https://a?d=e&d=f%20g').getQuery()['d'] == ['e', 'f g']",
        "url('HTTPS://a').getScheme() == 'https'",
        "isURL('/x')",
        "!isURL('x')",
        "ip('127.0.0.1').family() == 4",
        "ip('::1').isLoopback()",
        "!isIP('1.2.3')",
        "ip.isCanonical('::1')",
        "!ip.isCanonical('0:0::1')",
        "string(ip('10.0.0.1')) == '10.0.0.1'",
        "ip('10.0.0.1').isGlobalUnicast()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3')",
        "!cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.0.0.0/8').prefixLength() == 8",
        "cidr('10.0.0.0/8').ip() == ip('10.0.0.0')",
        "!isCIDR('10.0.0.0/33')",
        "!format.dns1123Label().validate('ok-name').hasValue()",
        "format.dns1123Label().validate('Not_ok').hasValue()",
        "format.named('uuid').hasValue()",
        "semver('1.2.3').major() == 1",
        "semver('1.2.3').isLessThan(semver('1.10.0'))",
        "semver('1.0.0-rc.1').compareTo(semver('1.0.0')) == -1",
        "isSemver('v1.2', true)",
        "!isSemver('v1.2')",
    ];
    for source in truths {
        assert_eq!(eval(source).as_deref(), Ok("true"), "{source}");
    }
}

#[test]
fn errors_have_the_words_of_cel() {
    for (source, want) in [
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("[1][3]", "index out of bounds: 3"),
        ("{'a': 1}['b']", "no such key: b"),
        ("{'a': 1}.b", "no such key: b"),
        ("dyn(1) + dyn('a')", "no such overload"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("[].max()", "max called on empty list"),
        ("optional.none().value()", "optional.none() dereference"),
        ("'abc'.substring(5)", "index out of range: 5"),
    ] {
        assert_eq!(eval(source), Err(Fault::new(want)), "{source}");
    }
}

#[test]
fn a_rule_that_does_too_much_is_stopped() {
    let long = "[0,1,2,3,4,5,6,7,8,9]";
    let nested = format!(
        "{long}.all(a, {long}.all(b, {long}.all(c, {long}.all(d, {long}.all(e, {long}.all(f, {long}.all(g, a >= 0)))))))"
    );
    assert_eq!(eval(&nested), Err(Fault::CostLimit));
    assert_eq!(eval("lists.range(999999).map(x, lists.range(999999)).size() > 0"), Err(Fault::CostLimit));
    assert_eq!(
        eval("lists.range(1000).map(x, 'aaaaaaaaaa').join('').replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbbb').size() > 0")
            .err(),
        None
    );
}

#[test]
fn an_expression_of_any_shape_is_parsed_or_refused() {
    for count in [50, 90, program::MAX_DEPTH - 1, program::MAX_DEPTH + 1, 5000] {
        for source in [
            vec!["1"; count].join(" + "),
            vec!["true"; count].join(" && "),
            format!("{}1{}", "[".repeat(count), "]".repeat(count)),
            format!("{}1{}", "(".repeat(count), ")".repeat(count)),
            format!("{{}}{}", ".a".repeat(count)),
            format!("{}true", "!".repeat(count)),
            format!("{}1", "-".repeat(count)),
            format!("{}1{}", "size(".repeat(count), ")".repeat(count)),
            format!("{}true{}", "[1].all(x, ".repeat(count), ")".repeat(count)),
            format!("{}1", "true ? 1 : ".repeat(count)),
        ] {
            if let Ok(program) = program::parse(&source) {
                let mut meter = Meter::new(RULE_COST_LIMIT);
                let _ = Eval::new(Vec::new(), &mut meter).run(program.expression());
                let _ = check::check(&program, Vec::new());
            }
        }
    }
    assert!(program::parse(&"a".repeat(program::MAX_EXPRESSION_BYTES + 1)).is_err());
    assert!(program::parse(&vec!["1"; 100].join(" + ")).is_ok());
}

#[test]
fn rules_speak_about_fields_of_the_object() {
    let properties = json!({
        "min": {"type": "integer"}, "max": {"type": "integer"}, "ratio": {"type": "number"},
        "name": {"type": "string"}, "my-field": {"type": "string"}, "namespace": {"type": "string"},
        "since": {"type": "string", "format": "date-time"}, "every": {"type": "string", "format": "duration"},
        "raw": {"type": "string", "format": "byte"}, "port": {"x-kubernetes-int-or-string": true},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "maybe": {"type": "string", "nullable": true},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"}, "v": {"type": "integer"}}}},
    });
    let object = json!({"spec": {"min": 1, "max": 3, "ratio": 1, "name": "x", "my-field": "y", "namespace": "z",
        "since": "2024-01-01T00:00:00Z", "every": "90s", "raw": "YWI=", "port": "50%", "tags": ["b", "a"],
        "labels": {"a/b": "c"}, "maybe": null, "list": [{"n": "p", "v": 1}, {"n": "q"}]}});
    for rule in [
        "self.min <= self.max",
        "self.ratio == 1.0",
        "self.name == 'x' && !has(self.other_name) == false || true",
        "self.my__dash__field == 'y'",
        "self.__namespace__ == 'z'",
        "self.since.getFullYear() == 2024",
        "self.every == duration('1m30s')",
        "self.raw == b'ab'",
        "type(self.port) == string && self.port.endsWith('%')",
        "self.tags == ['a', 'b']",
        "(self.tags + ['a', 'c']).size() == 3",
        "self.labels['a/b'] == 'c'",
        "self.labels.all(k, self.labels[k] != '')",
        "!has(self.maybe)",
        "self.list.all(x, !has(x.v) || x.v > 0)",
        "self.list == [{'n': dyn('q')}, {'n': dyn('p'), 'v': dyn(1)}]",
        "self.list.exists(x, x.n == 'q' && !has(x.v))",
        "size(self.list) == 2 && size(self.labels) == 1",
        "self.?missing_is_checked.hasValue() || true",
    ] {
        let schema = schema_with(&properties, &json!({"rule": rule}));
        let spec = &schema.properties["spec"];
        if rule.contains("other_name") || rule.contains("missing_is_checked") {
            assert!(check(&spec.rules[0], spec, false).rule_error.unwrap().contains("undefined field"), "{rule}");
            continue;
        }
        assert_eq!(check(&spec.rules[0], spec, false).rule_error, None, "{rule}");
        assert_eq!(texts(&validate(&object, None, &schema)), Vec::<String>::new(), "{rule}");
    }
}

#[test]
fn what_fails_is_told_as_the_rule_wants_it() {
    let properties = json!({"min": {"type": "integer"}, "max": {"type": "integer"}});
    let object = json!({"spec": {"min": 3, "max": 1}});
    let check = |rule: Value| texts(&validate(&object, None, &schema_with(&properties, &rule)));
    let rule = "self.min <= self.max";
    assert_eq!(check(json!({"rule": rule})), ["spec: Invalid value: failed rule: self.min <= self.max"]);
    assert_eq!(check(json!({"rule": rule, "message": "min is too high"})), ["spec: Invalid value: min is too high"]);
    assert_eq!(
        check(json!({"rule": rule, "message": "no", "messageExpression": "'%d > %d'.format([self.min, self.max])"})),
        ["spec: Invalid value: 3 > 1"]
    );
    assert_eq!(
        check(json!({"rule": rule, "message": "fallback", "messageExpression": "string(self.nope / 0)"})),
        ["spec: Invalid value: fallback"]
    );
    assert_eq!(
        check(json!({"rule": rule, "fieldPath": ".min", "reason": "FieldValueForbidden"})),
        ["spec.min: Forbidden: failed rule: self.min <= self.max"]
    );
    assert_eq!(
        check(json!({"rule": "self.max / (self.max - 1) > 0"})),
        ["spec: Invalid value: \"object\": division by zero evaluating rule: self.max / (self.max - 1) > 0"]
    );
    let scalar = compile(&json!({"type": "object", "properties": {"n": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "must be even"}]}}}))
    .unwrap();
    assert_eq!(texts(&validate(&json!({"n": 3}), None, &scalar)), ["n: Invalid value: 3: must be even"]);
}

#[test]
fn transition_rules_need_an_old_value() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is immutable"}]},
        "once": {"type": "string", "x-kubernetes-validations": [
            {"rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": true, "message": "is set once"}]},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "string"},
                "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "cannot shrink"}]}}}},
    }}}}))
    .unwrap();
    let check = |new: Value, old: Option<Value>| {
        let old = old.map(|old| json!({"spec": old}));
        texts(&validate(&json!({"spec": new}), old.as_ref(), &schema))
    };
    assert_eq!(check(json!({"fixed": "a"}), None), Vec::<String>::new());
    assert_eq!(check(json!({"fixed": "a"}), Some(json!({}))), Vec::<String>::new());
    assert_eq!(check(json!({"fixed": "a"}), Some(json!({"fixed": "a"}))), Vec::<String>::new());
    assert_eq!(
        check(json!({"fixed": "b"}), Some(json!({"fixed": "a"}))),
        ["spec.fixed: Invalid value: \"b\": is immutable"]
    );
    assert_eq!(check(json!({"once": "b"}), Some(json!({}))), Vec::<String>::new());
    assert_eq!(
        check(json!({"once": "b"}), Some(json!({"once": "a"}))),
        ["spec.once: Invalid value: \"b\": is set once"]
    );
    // Elements of map lists are found by their keys, wherever they stand.
    let old = json!({"list": [{"n": "a", "size": 5}, {"n": "b", "size": 1}]});
    let new = json!({"list": [{"n": "b", "size": 2}, {"n": "c", "size": 1}, {"n": "a", "size": 4}]});
    assert_eq!(check(new, Some(old)), ["spec.list[2].size: Invalid value: 4: cannot shrink"]);
}

#[test]
fn what_did_not_change_is_forgiven() {
    let schema = schema_with(
        &json!({"a": {"type": "integer"}, "b": {"type": "object", "properties": {"c": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "self < 5"}]}}}}),
        &json!({"rule": "self.a < 5"}),
    );
    let old = json!({"spec": {"a": 9, "b": {"c": 9}}, "status": 1});
    let moved = json!({"spec": {"a": 9, "b": {"c": 9}}, "status": 2});
    assert_eq!(texts(&validate(&moved, Some(&old), &schema)), Vec::<String>::new());
    let changed = json!({"spec": {"a": 8, "b": {"c": 9}}});
    assert_eq!(texts(&validate(&changed, Some(&old), &schema)), ["spec: Invalid value: failed rule: self.a < 5"]);
    assert_eq!(validate(&old, None, &schema).len(), 2);
}

#[test]
fn a_whole_object_shows_its_names_and_no_more_of_its_metadata() {
    let schema = |rule: &str| {
        compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "x-kubernetes-validations": [{"rule": rule}]}))
        .unwrap()
    };
    let object =
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "labels": {"x": "y"}}, "spec": {"a": "n"}});
    for rule in [
        "self.metadata.name == self.spec.a",
        "self.kind == 'K' && self.apiVersion == 'g/v1'",
        "!has(self.metadata.generateName)",
    ] {
        let schema = schema(rule);
        assert_eq!(check(&schema.rules[0], &schema, true).rule_error, None, "{rule}");
        assert_eq!(texts(&validate(&object, None, &schema)), Vec::<String>::new(), "{rule}");
    }
    let schema = schema("self.metadata.labels.x == 'y'");
    let error = check(&schema.rules[0], &schema, true).rule_error.unwrap();
    assert_eq!(
        error,
        "compilation failed: ERROR: <input>:1:14: undefined field 'labels'\n | self.metadata.labels.x == 'y'\n | .............^"
    );
}

#[test]
fn mistakes_are_found_before_a_rule_runs() {
    let properties = json!({"n": {"type": "integer"}, "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}}});
    for (rule, want) in [
        ("self.nope", "undefined field 'nope'"),
        ("self.l.all(e, e.nope == '')", "undefined field 'nope'"),
        ("other == 1", "undeclared reference to 'other' (in container '')"),
        ("frobnicate(self.n)", "undeclared reference to 'frobnicate' (in container '')"),
        ("self.n == self.s", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.n + self.s == ''", "found no matching overload for '_+_' applied to '(int, string)'"),
        ("self.s.startsWith(1)", "found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("self.n.size() > 0", "found no matching overload for 'size' applied to 'int.()'"),
        ("self.n && true", "expected type 'bool' but found 'int'"),
        (
            "self.s.all(c, true)",
            "expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("self.n + 1", "cel expression must evaluate to a bool"),
        ("self.n ==", "Syntax error"),
    ] {
        let schema = schema_with(&properties, &json!({"rule": rule}));
        let spec = &schema.properties["spec"];
        let error = check(&spec.rules[0], spec, false).rule_error.unwrap_or_else(|| panic!("{rule} passed"));
        assert!(error.contains(want), "{rule}: {error}");
    }
    let schema = schema_with(&properties, &json!({"rule": "true", "messageExpression": "self.n"}));
    let spec = &schema.properties["spec"];
    assert_eq!(
        check(&spec.rules[0], spec, false).message_error.as_deref(),
        Some("messageExpression must evaluate to a string")
    );
}

#[test]
fn rules_wait_for_an_object_that_is_whole() {
    let schema = schema_with(&json!({"n": {"type": "integer"}}), &json!({"rule": "self.n > 0"}));
    let object = json!({"spec": {"n": "x"}});
    let errors = crate::schema::validate(&object, &schema);
    let blocked = blocked(&errors, &schema).unwrap();
    assert!(blocked.to_string().starts_with("<nil>: Invalid value: null: some validation rules were not checked"));
}

proptest! {
    #[test]
    fn no_text_upsets_parser_checker_or_evaluator(
        text in r"(self|oldSelf|\.a|\.b|\[0\]|\(|\)|\+|-|==|&&|!|'x'|1|1\.5|, | in |\.all\(x, x|\.size\(\)|\?|:|\{|\}|true){0,12}"
    ) {
        let schema = schema_with(&json!({"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}}),
            &json!({"rule": text}));
        let spec = &schema.properties["spec"];
        let _ = check(&spec.rules[0], spec, false);
        let object = json!({"spec": {"a": 1, "b": ["x"]}});
        let _ = validate(&object, Some(&object), &schema);
    }
}
