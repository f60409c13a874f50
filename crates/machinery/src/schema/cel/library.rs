//! What Kubernetes adds to the language: quantities, URLs, addresses and networks, formats, versions.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;

use super::convert::text;
use super::functions::{Gives, Kind, Row};
use super::operators::map_of;
use super::value::{Fault, Outcome, Val};
use crate::names::{self, NameRule};
use crate::quantity::{Format as QuantityFormat, Quantity};
use crate::schema::formats;

const BOOL: Gives = Gives::Kind(Kind::Bool);
const INT: Gives = Gives::Kind(Kind::Int);
const DOUBLE: Gives = Gives::Kind(Kind::Double);
const TEXT: Gives = Gives::Kind(Kind::Text);
const QUANTITY: Gives = Gives::Kind(Kind::Quantity);
const URL: Gives = Gives::Kind(Kind::Url);
const IP: Gives = Gives::Kind(Kind::Ip);
const CIDR: Gives = Gives::Kind(Kind::Cidr);
const FORMAT: Gives = Gives::Kind(Kind::Format);
const SEMVER: Gives = Gives::Kind(Kind::Semver);

pub(super) const FUNCTIONS: &[Row] = &[
    ("quantity", false, &[Kind::Text], QUANTITY, |v, _| {
        let parsed = Quantity::parse(text(&v[0])?);
        parsed.map(|q| Val::Quantity(Rc::new(q))).map_err(|e| Fault::new(e.to_string()))
    }),
    ("isQuantity", false, &[Kind::Text], BOOL, |v, _| Ok(Val::Bool(Quantity::parse(text(&v[0])?).is_ok()))),
    ("sign", true, &[Kind::Quantity], INT, |v, _| Ok(Val::Int(i64::from(quantity(&v[0])?.signum())))),
    ("isLessThan", true, &[Kind::Quantity, Kind::Quantity], BOOL, |v, _| compared(v, Ordering::is_lt)),
    ("isGreaterThan", true, &[Kind::Quantity, Kind::Quantity], BOOL, |v, _| compared(v, Ordering::is_gt)),
    ("compareTo", true, &[Kind::Quantity, Kind::Quantity], INT, |v, _| {
        Ok(Val::Int(quantity(&v[0])?.cmp(quantity(&v[1])?) as i64))
    }),
    ("isInteger", true, &[Kind::Quantity], BOOL, |v, _| Ok(Val::Bool(whole(quantity(&v[0])?).is_some()))),
    ("asInteger", true, &[Kind::Quantity], INT, |v, _| {
        let why = "cannot convert value to integer";
        whole(quantity(&v[0])?).map(Val::Int).ok_or_else(|| Fault::new(why))
    }),
    ("asApproximateFloat", true, &[Kind::Quantity], DOUBLE, |v, _| Ok(Val::Double(quantity(&v[0])?.approximate()))),
    ("add", true, &[Kind::Quantity, Kind::Quantity], QUANTITY, |v, _| {
        Ok(Val::Quantity(Rc::new(quantity(&v[0])? + quantity(&v[1])?)))
    }),
    ("add", true, &[Kind::Quantity, Kind::Int], QUANTITY, |v, _| {
        Ok(Val::Quantity(Rc::new(quantity(&v[0])? + &units(&v[1])?)))
    }),
    ("sub", true, &[Kind::Quantity, Kind::Quantity], QUANTITY, |v, _| {
        Ok(Val::Quantity(Rc::new(quantity(&v[0])? - quantity(&v[1])?)))
    }),
    ("sub", true, &[Kind::Quantity, Kind::Int], QUANTITY, |v, _| {
        Ok(Val::Quantity(Rc::new(quantity(&v[0])? - &units(&v[1])?)))
    }),
    ("url", false, &[Kind::Text], URL, |v, _| {
        let given = text(&v[0])?;
        let why = || {
            Fault::new(format!(
                "URL parse error during conversion from string: parse {given:?}: invalid URI for request"
            ))
        };
        Url::parse(given).map(|url| Val::Url(Rc::new(url))).ok_or_else(why)
    }),
    ("isURL", false, &[Kind::Text], BOOL, |v, _| Ok(Val::Bool(Url::parse(text(&v[0])?).is_some()))),
    ("getScheme", true, &[Kind::Url], TEXT, |v, _| Ok(Val::text(url(&v[0])?.scheme.clone()))),
    ("getHost", true, &[Kind::Url], TEXT, |v, _| Ok(Val::text(url(&v[0])?.host.clone()))),
    ("getHostname", true, &[Kind::Url], TEXT, |v, _| Ok(Val::text(url(&v[0])?.hostname().to_owned()))),
    ("getPort", true, &[Kind::Url], TEXT, |v, _| Ok(Val::text(url(&v[0])?.port().to_owned()))),
    ("getEscapedPath", true, &[Kind::Url], TEXT, |v, _| Ok(Val::text(url(&v[0])?.path.clone()))),
    ("getQuery", true, &[Kind::Url], Gives::Kind(Kind::Map), |v, m| {
        m.read(&url(&v[0])?.query)?;
        Ok(url(&v[0])?.query_values())
    }),
    ("ip", false, &[Kind::Text], IP, |v, _| parse_ip(text(&v[0])?).map(Val::Ip)),
    ("isIP", false, &[Kind::Text], BOOL, |v, _| Ok(Val::Bool(parse_ip(text(&v[0])?).is_ok()))),
    ("ip.isCanonical", false, &[Kind::Text], BOOL, |v, _| {
        let given = text(&v[0])?;
        Ok(Val::Bool(parse_ip(given)?.to_string() == given))
    }),
    ("family", true, &[Kind::Ip], INT, |v, _| Ok(Val::Int(if ip(&v[0])?.is_ipv4() { 4 } else { 6 }))),
    ("isUnspecified", true, &[Kind::Ip], BOOL, |v, _| Ok(Val::Bool(ip(&v[0])?.is_unspecified()))),
    ("isLoopback", true, &[Kind::Ip], BOOL, |v, _| Ok(Val::Bool(ip(&v[0])?.is_loopback()))),
    ("isLinkLocalMulticast", true, &[Kind::Ip], BOOL, |v, _| Ok(Val::Bool(is_link_local_multicast(ip(&v[0])?)))),
    ("isLinkLocalUnicast", true, &[Kind::Ip], BOOL, |v, _| Ok(Val::Bool(is_link_local_unicast(ip(&v[0])?)))),
    ("isGlobalUnicast", true, &[Kind::Ip], BOOL, |v, _| Ok(Val::Bool(is_global_unicast(ip(&v[0])?)))),
    ("cidr", false, &[Kind::Text], CIDR, |v, _| Cidr::parse(text(&v[0])?).map(Val::Cidr)),
    ("isCIDR", false, &[Kind::Text], BOOL, |v, _| Ok(Val::Bool(Cidr::parse(text(&v[0])?).is_ok()))),
    ("containsIP", true, &[Kind::Cidr, Kind::Text], BOOL, |v, _| {
        Ok(Val::Bool(cidr(&v[0])?.contains(parse_ip(text(&v[1])?)?)))
    }),
    ("containsIP", true, &[Kind::Cidr, Kind::Ip], BOOL, |v, _| Ok(Val::Bool(cidr(&v[0])?.contains(ip(&v[1])?)))),
    ("containsCIDR", true, &[Kind::Cidr, Kind::Text], BOOL, |v, _| {
        Ok(Val::Bool(cidr(&v[0])?.contains_network(Cidr::parse(text(&v[1])?)?)))
    }),
    ("containsCIDR", true, &[Kind::Cidr, Kind::Cidr], BOOL, |v, _| {
        Ok(Val::Bool(cidr(&v[0])?.contains_network(cidr(&v[1])?)))
    }),
    ("ip", true, &[Kind::Cidr], IP, |v, _| Ok(Val::Ip(cidr(&v[0])?.address))),
    ("masked", true, &[Kind::Cidr], CIDR, |v, _| Ok(Val::Cidr(cidr(&v[0])?.masked()))),
    ("prefixLength", true, &[Kind::Cidr], INT, |v, _| Ok(Val::Int(i64::from(cidr(&v[0])?.bits)))),
    ("format.named", false, &[Kind::Text], Gives::Kind(Kind::Optional), |v, _| {
        let name = text(&v[0])?;
        let found = FORMATS.iter().find(|format| format.name == name);
        Ok(found.map_or(Val::Optional(None), |format| Val::some(Val::Format(format))))
    }),
    ("format.dns1123Label", false, &[], FORMAT, |_, _| Ok(named_format("dns1123Label"))),
    ("format.dns1123Subdomain", false, &[], FORMAT, |_, _| Ok(named_format("dns1123Subdomain"))),
    ("format.dns1035Label", false, &[], FORMAT, |_, _| Ok(named_format("dns1035Label"))),
    ("format.qualifiedName", false, &[], FORMAT, |_, _| Ok(named_format("qualifiedName"))),
    ("format.dns1123LabelPrefix", false, &[], FORMAT, |_, _| Ok(named_format("dns1123LabelPrefix"))),
    ("format.dns1123SubdomainPrefix", false, &[], FORMAT, |_, _| Ok(named_format("dns1123SubdomainPrefix"))),
    ("format.dns1035LabelPrefix", false, &[], FORMAT, |_, _| Ok(named_format("dns1035LabelPrefix"))),
    ("format.labelValue", false, &[], FORMAT, |_, _| Ok(named_format("labelValue"))),
    ("format.uri", false, &[], FORMAT, |_, _| Ok(named_format("uri"))),
    ("format.uuid", false, &[], FORMAT, |_, _| Ok(named_format("uuid"))),
    ("format.byte", false, &[], FORMAT, |_, _| Ok(named_format("byte"))),
    ("format.date", false, &[], FORMAT, |_, _| Ok(named_format("date"))),
    ("format.datetime", false, &[], FORMAT, |_, _| Ok(named_format("datetime"))),
    ("validate", true, &[Kind::Format, Kind::Text], Gives::Kind(Kind::Optional), |v, m| {
        let Val::Format(format) = &v[0] else { return Err(Fault::no_such_overload()) };
        m.read(text(&v[1])?)?;
        let wrong = (format.check)(text(&v[1])?);
        let list = || Val::some(Val::list(wrong.iter().map(|why| Val::text(why.clone())).collect()));
        Ok(if wrong.is_empty() { Val::Optional(None) } else { list() })
    }),
    ("semver", false, &[Kind::Text], SEMVER, |v, _| to_semver(v)),
    ("semver", false, &[Kind::Text, Kind::Bool], SEMVER, |v, _| to_semver(v)),
    ("isSemver", false, &[Kind::Text], BOOL, |v, _| Ok(Val::Bool(to_semver(v).is_ok()))),
    ("isSemver", false, &[Kind::Text, Kind::Bool], BOOL, |v, _| Ok(Val::Bool(to_semver(v).is_ok()))),
    ("major", true, &[Kind::Semver], INT, |v, _| Ok(Val::Int(semver(&v[0])?.numbers[0]))),
    ("minor", true, &[Kind::Semver], INT, |v, _| Ok(Val::Int(semver(&v[0])?.numbers[1]))),
    ("patch", true, &[Kind::Semver], INT, |v, _| Ok(Val::Int(semver(&v[0])?.numbers[2]))),
    ("compareTo", true, &[Kind::Semver, Kind::Semver], INT, |v, _| {
        Ok(Val::Int(semver(&v[0])?.order(semver(&v[1])?) as i64))
    }),
    ("isLessThan", true, &[Kind::Semver, Kind::Semver], BOOL, |v, _| {
        Ok(Val::Bool(semver(&v[0])?.order(semver(&v[1])?).is_lt()))
    }),
    ("isGreaterThan", true, &[Kind::Semver, Kind::Semver], BOOL, |v, _| {
        Ok(Val::Bool(semver(&v[0])?.order(semver(&v[1])?).is_gt()))
    }),
];

macro_rules! inner {
    ($name:ident, $variant:ident, $ty:ty) => {
        fn $name<'v>(value: &'v Val<'_>) -> Outcome<&'v $ty> {
            match value {
                Val::$variant(inner) => Ok(inner),
                _ => Err(Fault::no_such_overload()),
            }
        }
    };
}

inner!(quantity, Quantity, Quantity);
inner!(url, Url, Url);
inner!(semver, Semver, Semver);

fn ip(value: &Val<'_>) -> Outcome<IpAddr> {
    match value {
        Val::Ip(address) => Ok(*address),
        _ => Err(Fault::no_such_overload()),
    }
}

fn cidr(value: &Val<'_>) -> Outcome<Cidr> {
    match value {
        Val::Cidr(cidr) => Ok(*cidr),
        _ => Err(Fault::no_such_overload()),
    }
}

fn compared<'a>(v: &[Val<'a>], holds: fn(Ordering) -> bool) -> Outcome<Val<'a>> {
    Ok(Val::Bool(holds(quantity(&v[0])?.cmp(quantity(&v[1])?))))
}

fn units(value: &Val<'_>) -> Outcome<Quantity> {
    match value {
        Val::Int(n) => Ok(Quantity::new(*n, QuantityFormat::DecimalSi)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// The quantity as a whole number, if it is one that fits.
fn whole(quantity: &Quantity) -> Option<i64> {
    let value = quantity.value();
    (Quantity::new(value, quantity.format()) == *quantity).then_some(value)
}

/// A URL that a request could name: absolute, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    scheme: String,
    /// With the port, without user information.
    host: String,
    /// Escaped where it was not.
    path: String,
    query: String,
}

impl Url {
    fn parse(text: &str) -> Option<Self> {
        if !formats::holds("uri", text) {
            return None;
        }
        let (before, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (before, query) = before.split_once('?').unwrap_or((before, ""));
        let (scheme, rest) = if before.starts_with('/') { ("", before) } else { before.split_once(':')? };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
            None => ("", rest),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        Some(Self {
            scheme: scheme.to_lowercase(),
            host: host.to_owned(),
            path: escaped_path(path),
            query: query.to_owned(),
        })
    }

    fn hostname(&self) -> &str {
        if let Some((inside, _)) = self.host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            return inside;
        }
        self.host.split_once(':').map_or(&self.host, |(name, _)| name)
    }

    fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// Every parameter with all its values.
    fn query_values<'a>(&self) -> Val<'a> {
        let mut found: Vec<(String, Vec<Val<'a>>)> = Vec::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (unescape_query(name), Val::text(unescape_query(value)));
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => found.push((name, vec![value])),
            }
        }
        map_of(found.into_iter().map(|(name, values)| (Val::text(name), Val::list(values))).collect())
    }
}

fn escaped_path(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*%[]".contains(&b);
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0').to_ascii_uppercase();
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if plain(byte) {
            out.push(byte as char);
        } else {
            out.extend(['%', digit(byte >> 4), digit(byte & 0xf)]);
        }
    }
    out
}

fn unescape_query(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|b| (*b as char).to_digit(16));
        rest = match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                &after[2..]
            }
            (b'+', ..) => {
                bytes.push(b' ');
                after
            }
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse_ip(text: &str) -> Outcome<IpAddr> {
    let address: IpAddr = text.parse().map_err(|_| {
        Fault::new(format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        ))
    })?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(Fault::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        _ => Ok(address),
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global_unicast(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    let special = broadcast || address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !special && !is_link_local_unicast(address)
}

/// An address and how many of its bits name a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    fn parse(text: &str) -> Outcome<Self> {
        let wrong = || Fault::new(format!("network address parse error during conversion from string: {text:?}"));
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let plain =
            !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
        let bits: u8 = bits.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if bits > width || matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }

    fn network(address: IpAddr, bits: u8) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }

    fn masked(self) -> Self {
        Self { address: Self::network(self.address, self.bits), bits: self.bits }
    }

    fn contains(self, address: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == address.is_ipv4();
        same_family && Self::network(address, self.bits) == self.masked().address
    }

    fn contains_network(self, other: Self) -> bool {
        other.bits >= self.bits && self.contains(other.address)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// A format that texts can be held against, with the complaints about one that does not have it.
#[derive(Debug)]
pub(super) struct NamedFormat {
    pub name: &'static str,
    check: fn(&str) -> Vec<String>,
}

fn complaint(holds: bool, why: &str) -> Vec<String> {
    if holds { Vec::new() } else { vec![why.to_owned()] }
}

static FORMATS: [NamedFormat; 13] = [
    NamedFormat { name: "dns1123Label", check: |s| NameRule::Label.check(s, false) },
    NamedFormat { name: "dns1123Subdomain", check: |s| NameRule::Subdomain.check(s, false) },
    NamedFormat { name: "dns1035Label", check: |s| NameRule::Label1035.check(s, false) },
    NamedFormat { name: "qualifiedName", check: names::qualified_name },
    NamedFormat { name: "dns1123LabelPrefix", check: |s| NameRule::Label.check(s, true) },
    NamedFormat { name: "dns1123SubdomainPrefix", check: |s| NameRule::Subdomain.check(s, true) },
    NamedFormat { name: "dns1035LabelPrefix", check: |s| NameRule::Label1035.check(s, true) },
    NamedFormat { name: "labelValue", check: names::label_value },
    NamedFormat { name: "uri", check: |s| complaint(formats::holds("uri", s), "invalid URI for request") },
    NamedFormat { name: "uuid", check: |s| complaint(formats::holds("uuid", s), "does not match the UUID format") },
    NamedFormat { name: "byte", check: |s| complaint(formats::holds("byte", s), "invalid base64") },
    NamedFormat { name: "date", check: |s| complaint(formats::holds("date", s), "invalid date") },
    NamedFormat { name: "datetime", check: |s| complaint(formats::holds("datetime", s), "invalid datetime") },
];

fn named_format<'a>(name: &str) -> Val<'a> {
    FORMATS.iter().find(|format| format.name == name).map_or(Val::Null, Val::Format)
}

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Semver {
    numbers: [i64; 3],
    pre: Vec<String>,
    build: String,
}

impl Semver {
    fn parse(text: &str) -> Option<Self> {
        let (rest, build) = text.split_once('+').unwrap_or((text, ""));
        let (core, pre) = match rest.split_once('-') {
            Some((core, pre)) => (core, pre.split('.').map(str::to_owned).collect()),
            None => (rest, Vec::new()),
        };
        let mut numbers = [0; 3];
        let mut parts = core.split('.');
        for number in &mut numbers {
            let part = parts.next()?;
            let plain = part.bytes().all(|b| b.is_ascii_digit()) && (part.len() == 1 || !part.starts_with('0'));
            *number = part.parse().ok().filter(|_| plain)?;
        }
        let identifier = |s: &String| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let fine = parts.next().is_none() && pre.iter().all(identifier);
        let build_fine =
            !text.ends_with('+') && (build.is_empty() || build.split('.').all(|s| identifier(&s.to_owned())));
        (fine && build_fine).then(|| Self { numbers, pre, build: build.to_owned() })
    }

    /// Drops what a strict version does not have: a `v`, leading zeros, and fills up to three numbers.
    fn normalized(text: &str) -> String {
        let text = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (core, rest) = text.split_at(end);
        let mut parts: Vec<&str> = core
            .split('.')
            .map(|part| {
                let trimmed = part.trim_start_matches('0');
                if trimmed.is_empty() && !part.is_empty() { "0" } else { trimmed }
            })
            .collect();
        while parts.len() < 3 {
            parts.push("0");
        }
        format!("{}{rest}", parts.join("."))
    }

    /// Precedence: a pre-release comes before its release; numbers before words; builds do not count.
    fn order(&self, other: &Self) -> Ordering {
        let identifiers = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        let pre = || match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let first = self.pre.iter().zip(&other.pre).map(|(a, b)| identifiers(a, b)).find(|o| o.is_ne());
                first.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        };
        self.numbers.cmp(&other.numbers).then_with(pre)
    }
}

fn to_semver<'a>(v: &[Val<'a>]) -> Outcome<Val<'a>> {
    let given = text(&v[0])?;
    let parsed = match v.get(1) {
        Some(Val::Bool(true)) => Semver::parse(&Semver::normalized(given)),
        _ => Semver::parse(given),
    };
    parsed.map(|version| Val::Semver(Rc::new(version))).ok_or_else(|| Fault::new(format!("invalid semver: {given:?}")))
}
