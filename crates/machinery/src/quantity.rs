//! Quantities: `100m`, `1.5Gi`, `12e6`. Exact, comparable, and printed as Kubernetes prints them.
//!
//! The smallest amount is one nano, and anything smaller is rounded up to it, so a quantity is a whole
//! number of nanos. 128 bits of them reach to 10²⁹ units, beyond anything that is measured; that keeps
//! arithmetic exact and its cost constant, where arbitrary precision would let a request of ten bytes
//! (`1e999999999`) ask for a gigabyte of digits.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Neg, Sub};
use std::str::FromStr;

use serde_json::Value;

const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// Decimal places that are kept.
const NANO_SCALE: i64 = 9;
/// Digits of the largest number of nanos that is accepted.
const MAX_NANO_DIGITS: i64 = 38;
/// Binary quantities saturate at what a signed 64-bit number holds.
const MAX_BINARY: i128 = i64::MAX as i128 * NANOS_PER_UNIT;
/// Up to this many decimal digits Kubernetes takes a short path, on which it keeps the text as written.
const SHORT_DIGITS: i64 = 18;

/// Why a text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Which suffixes a quantity is printed with; it keeps those it was written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

/// An amount of something.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The text, where it was already in canonical form: `+1` and `1E3` are printed as they were written.
    written: Option<Box<str>>,
}

impl Quantity {
    /// A whole number of units.
    pub fn new(units: i64, format: Format) -> Self {
        Self::from_nanos(i128::from(units) * NANOS_PER_UNIT, format)
    }

    fn from_nanos(nanos: i128, format: Format) -> Self {
        Self { nanos, format, written: None }
    }

    /// Parses the text of a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let parts = Parts::split(text)?;
        let (suffix, format) = Suffix::interpret(parts.suffix)?;
        let digits = [parts.whole, parts.fraction].concat();
        let places = parts.fraction.len() as i64;
        let nanos = match suffix {
            Suffix::Ten(exponent) => decimal_nanos(&digits, exponent.saturating_sub(places))?,
            Suffix::Two(exponent) => binary_nanos(parts.whole, parts.fraction, exponent),
        };
        let format =
            if format == Format::BinarySi && 0 < nanos && nanos < NANOS_PER_UNIT { Format::DecimalSi } else { format };
        let short = parts.is_short(suffix, &digits);
        if !short && !parts.has_digits {
            return Err(QuantityError::Numeric);
        }
        let written = (short && is_canonical(suffix, places, &digits)).then(|| text.into());
        Ok(Self { nanos: if parts.negative { -nanos } else { nanos }, format, written })
    }

    /// Reads a quantity from a JSON string or number; null is zero.
    pub fn from_json(value: &Value) -> Result<Self, QuantityError> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.to_string()),
            _ => Err(QuantityError::Format),
        }
    }

    /// Whole units, rounded away from zero.
    pub fn value(&self) -> i64 {
        self.rounded(NANOS_PER_UNIT)
    }

    /// Thousandths, rounded away from zero.
    pub fn milli_value(&self) -> i64 {
        self.rounded(NANOS_PER_UNIT / 1000)
    }

    fn rounded(&self, unit: i128) -> i64 {
        let up = self.nanos.unsigned_abs().div_ceil(unit.unsigned_abs());
        let up = i64::try_from(up).unwrap_or(i64::MAX);
        if self.nanos < 0 { -up } else { up }
    }

    /// The closest double.
    pub fn approximate(&self) -> f64 {
        self.nanos as f64 / NANOS_PER_UNIT as f64
    }

    /// -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// How it is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The sum keeps the format of the left side, unless that is zero.
    fn combined(&self, other: &Self, nanos: i128) -> Self {
        Self::from_nanos(nanos, if self.is_zero() { other.format } else { self.format })
    }
}

/// Digits and suffix of a quantity, leading zeros removed.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Leading zeros count.
    has_digits: bool,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let zeros = rest.starts_with('0');
        let (whole, rest) = split_digits(rest.trim_start_matches('0'));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if !exponent.bytes().all(|b| b.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let has_digits = zeros || !whole.is_empty() || !fraction.is_empty();
        Ok(Self { negative, whole: if whole.is_empty() { "0" } else { whole }, fraction, suffix, has_digits })
    }

    /// Whether Kubernetes takes its short path, on which it keeps text and takes no digits for zero.
    fn is_short(&self, suffix: Suffix, digits: &str) -> bool {
        let length = digits.len() as i64;
        match suffix {
            Suffix::Ten(exponent) => {
                length <= SHORT_DIGITS && exponent.saturating_sub(self.fraction.len() as i64) >= -NANO_SCALE
            }
            // A power of two is worth about three decimal digits in ten bits.
            Suffix::Two(exponent) => self.fraction.is_empty() && length + i64::from(exponent) * 3 / 10 < 15,
        }
    }
}

/// Whether a short text has nothing to shorten.
fn is_canonical(suffix: Suffix, places: i64, digits: &str) -> bool {
    match suffix {
        Suffix::Ten(exponent) => {
            exponent.saturating_sub(places) % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        }
        Suffix::Two(_) => digits.parse::<i64>().is_ok_and(|value| value & 7 != 0),
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}

/// The factor that a suffix stands for: a power of ten or of two.
#[derive(Clone, Copy)]
enum Suffix {
    Ten(i64),
    Two(u32),
}

const DECIMAL_SUFFIXES: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Suffix {
    fn interpret(text: &str) -> Result<(Self, Format), QuantityError> {
        if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(suffix, _)| *suffix == text) {
            return Ok((Self::Ten(*exponent), Format::DecimalSi));
        }
        if let Some(power) = BINARY_SUFFIXES.iter().position(|suffix| *suffix == text) {
            return Ok((Self::Two(power as u32 * 10), Format::BinarySi));
        }
        let exponent = text.strip_prefix(['e', 'E']).and_then(|digits| digits.parse().ok());
        exponent.map(|e| (Self::Ten(e), Format::DecimalExponent)).ok_or(QuantityError::Suffix)
    }
}

/// `digits` · 10^`scale` in nanos, rounded up.
fn decimal_nanos(digits: &str, scale: i64) -> Result<i128, QuantityError> {
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Ok(0);
    }
    let shift = scale.saturating_add(NANO_SCALE);
    let length = significant.len() as i64;
    if length.saturating_add(shift) > MAX_NANO_DIGITS {
        return Err(QuantityError::Numeric);
    }
    if shift >= 0 {
        let value: i128 = significant.parse().map_err(|_| QuantityError::Numeric)?;
        return Ok(value * 10i128.pow(shift as u32));
    }
    // Some digits are worth less than a nano: any of them that is not zero rounds up.
    let kept = usize::try_from(length.saturating_add(shift)).unwrap_or(0);
    let (kept, lost) = significant.split_at(kept);
    let value: i128 = if kept.is_empty() { 0 } else { kept.parse().map_err(|_| QuantityError::Numeric)? };
    Ok(value + i128::from(lost.bytes().any(|b| b != b'0')))
}

/// `whole`.`fraction` · 2^`exponent` in nanos, rounded up, at most [`MAX_BINARY`].
fn binary_nanos(whole: &str, fraction: &str, exponent: u32) -> i128 {
    let unit = NANOS_PER_UNIT << exponent;
    // Anything that does not parse has more digits than fit, and saturates.
    let whole: i128 = whole.parse().unwrap_or(i128::MAX);
    // Digits from the right: what is lost when dividing by ten never reaches the nanos again, except that
    // it rounds up.
    let (mut nanos, mut inexact) = (0, false);
    for digit in fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * unit + nanos;
        inexact |= sum % 10 != 0;
        nanos = sum / 10;
    }
    whole.saturating_mul(unit).saturating_add(nanos + i128::from(inexact)).min(MAX_BINARY)
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Exact as far as quantities reach; sums beyond that stay at the largest one.
impl Add for &Quantity {
    type Output = Quantity;

    fn add(self, other: Self) -> Quantity {
        self.combined(other, self.nanos.saturating_add(other.nanos))
    }
}

impl Sub for &Quantity {
    type Output = Quantity;

    fn sub(self, other: Self) -> Quantity {
        self.combined(other, self.nanos.saturating_sub(other.nanos))
    }
}

impl Neg for &Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity::from_nanos(self.nanos.saturating_neg(), self.format)
    }
}

/// The canonical form: no fraction, the largest suffix that is exact.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(written) = &self.written {
            return f.write_str(written);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANOS_PER_UNIT == 0;
        if self.format == Format::BinarySi && whole && self.nanos.abs() >= 1024 * NANOS_PER_UNIT {
            return self.fmt_binary(f);
        }
        self.fmt_decimal(f)
    }
}

impl Quantity {
    fn fmt_binary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut units = self.nanos / NANOS_PER_UNIT;
        let mut suffixes = BINARY_SUFFIXES.iter();
        let mut suffix = suffixes.next().unwrap_or(&"");
        while units % 1024 == 0 {
            let Some(next) = suffixes.next() else { break };
            (units, suffix) = (units / 1024, next);
        }
        write!(f, "{units}{suffix}")
    }

    fn fmt_decimal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut amount, mut exponent) = (self.nanos, -NANO_SCALE);
        while amount % 1000 == 0 {
            (amount, exponent) = (amount / 1000, exponent + 3);
        }
        if exponent == 0 {
            return write!(f, "{amount}");
        }
        // Kubernetes has no suffix beyond E and prints none, which changes the value; an exponent does not.
        let suffix = DECIMAL_SUFFIXES.iter().find(|(_, e)| *e == exponent).map(|(suffix, _)| suffix);
        match suffix {
            Some(suffix) if self.format != Format::DecimalExponent => write!(f, "{amount}{suffix}"),
            _ => write!(f, "{amount}e{exponent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn canonical_form() {
        for (text, canonical) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0.0", "0"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1.50", "1500m"),
            (".5", "500m"),
            ("1000", "1k"),
            ("1000m", "1"),
            ("12000k", "12M"),
            ("1E", "1E"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("+1", "+1"),
            ("1.", "1."),
            ("10e1", "100"),
            ("1e-3", "1e-3"),
            ("100e-5", "1e-3"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1.5Ki", "1536"),
            ("1024", "1024"),
            ("2048Mi", "2Gi"),
            ("0.0001Ki", "102400u"),
            ("-1.5Gi", "-1536Mi"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("1.1n", "2n"),
            ("-0.1n", "-1n"),
            ("1e-999999999", "1e-9"),
            ("100Ei", "9223372036854775807"),
            ("9223372036854775808Ki", "9223372036854775807"),
            ("123456789012345678901234", "123456789012345678901234"),
            ("1000E", "1e21"),
            ("1e21", "1e21"),
            ("10697071375E", "10697071375E"),
            ("-", "0"),
            ("Ki", "0"),
        ] {
            assert_eq!(q(text).to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn errors() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("abc", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1Gi ", QuantityError::Format),
            ("1e3.5", QuantityError::Format),
            ("1ki", QuantityError::Suffix),
            ("1KiB", QuantityError::Format),
            ("1mi", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1e999999999", QuantityError::Numeric),
            ("Ei", QuantityError::Numeric),
            ("-e-12", QuantityError::Numeric),
            ("1e99999999999999999999", QuantityError::Suffix),
        ] {
            assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text}");
        }
        assert_eq!(Quantity::parse(&"9".repeat(100)).unwrap_err(), QuantityError::Numeric);
    }

    #[test]
    fn comparing_and_adding() {
        assert!(q("1Gi") > q("1G") && q("1") == q("1000m") && q("-1") < q("0") && q("1e3") == q("1k"));
        assert_eq!((&q("1Gi") + &q("512Mi")).to_string(), "1536Mi");
        assert_eq!((&q("0") + &q("512Mi")).to_string(), "512Mi", "zero takes the other's format");
        assert_eq!((&q("1") + &q("100m")).to_string(), "1100m");
        assert_eq!((&q("1Gi") - &q("1Gi")).to_string(), "0");
        assert_eq!((-&q("5Mi")).to_string(), "-5Mi");
        assert_eq!((q("1500m").value(), q("1500m").milli_value(), q("-1500m").value()), (2, 1500, -2));
        assert_eq!(q("1e25").value(), i64::MAX);
    }

    #[test]
    fn from_json_numbers_and_strings() {
        assert_eq!(Quantity::from_json(&json!(" 1Gi ")).unwrap(), q("1Gi"));
        assert_eq!(Quantity::from_json(&json!(0.5)).unwrap().to_string(), "500m");
        assert_eq!(Quantity::from_json(&json!(3)).unwrap().to_string(), "3");
        assert!(Quantity::from_json(&Value::Null).unwrap().is_zero());
        assert!(Quantity::from_json(&json!([])).is_err());
    }

    proptest! {
        #[test]
        fn printing_keeps_the_value(text in "[+-]?[0-9]{1,15}(\\.[0-9]{0,12})?(n|u|m||k|M|G|T|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9])") {
            let quantity = q(&text);
            let printed = quantity.to_string();
            prop_assert_eq!(&q(&printed), &quantity);
            // Without the text as written, the canonical form is a fixed point.
            let canonical = (&q("0") + &quantity).to_string();
            prop_assert_eq!((&q("0") + &q(&canonical)).to_string(), canonical);
        }

        #[test]
        fn sums_are_exact(a in -1_000_000_000_000i64..1_000_000_000_000, b in -1_000_000_000_000i64..1_000_000_000_000) {
            let sum = &q(&format!("{a}m")) + &q(&format!("{b}m"));
            prop_assert_eq!(sum, q(&format!("{}m", a + b)));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "[0-9.+eEinumkKMGTP-]{0,24}|\\PC{0,12}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let _ = (quantity.to_string(), quantity.value(), quantity.milli_value());
            }
        }
    }
}
