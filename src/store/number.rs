//! Numbers as the server compares them: by their exact values, whatever their types.

use std::cmp::Reverse;

use mongodb::bson::{Bson, Decimal128};

/// Digits after the first that write out any double exactly.
const DIGITS_OF_DOUBLE: usize = 766;

/// The value of a number, in the order of values. Equal numbers of different types have the same value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Number {
    Nan,
    Negative(Reverse<Size>),
    Zero,
    Positive(Size),
}

/// The size of a number that is not zero: the power of ten of the first digit, and the digits without zeros at either
/// end; or the largest power for one that is infinite.
type Size = (i32, String);

impl Number {
    /// Returns the value of a BSON number; `None` for anything else.
    pub(super) fn of(value: &Bson) -> Option<Self> {
        match value {
            Bson::Int32(number) => Some(Self::read(&number.to_string())),
            Bson::Int64(number) => Some(Self::read(&number.to_string())),
            Bson::Double(number) => Some(Self::read(&format!("{number:.DIGITS_OF_DOUBLE$e}"))),
            Bson::Decimal128(number) => Some(Self::read(&number.to_string())),
            _ => None,
        }
    }

    /// Reads a number as Rust and BSON write it: `-12.50e3`, `1E-7`, `NaN`, `-inf`, `Infinity`.
    fn read(text: &str) -> Self {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        // There are many NaNs, and the server treats all of them as equal.
        if text.eq_ignore_ascii_case("nan") {
            return Self::Nan;
        }
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0');
        let size = if text.starts_with(['i', 'I']) {
            (i32::MAX, String::new())
        } else if digits.is_empty() {
            return Self::Zero;
        } else {
            let zeros = all.len() - digits.len();
            let first = i32::try_from(whole.len()).unwrap_or_default() - i32::try_from(zeros).unwrap_or_default() - 1;
            let power = first + exponent.parse::<i32>().unwrap_or_default();
            (power, digits.trim_end_matches('0').to_owned())
        };
        if is_negative {
            Self::Negative(Reverse(size))
        } else {
            Self::Positive(size)
        }
    }

    /// Returns the value in one type, the same for all types in which it can be written: an integer of 64 bits if it is
    /// one, otherwise a double, otherwise a decimal.
    pub(super) fn into_bson(self) -> Bson {
        let (sign, power, digits) = match &self {
            Self::Nan => return Bson::Double(f64::NAN),
            Self::Zero => return Bson::Int64(0),
            Self::Negative(Reverse((i32::MAX, _))) => return Bson::Double(f64::NEG_INFINITY),
            Self::Positive((i32::MAX, _)) => return Bson::Double(f64::INFINITY),
            Self::Negative(Reverse((power, digits))) => ("-", power, digits),
            Self::Positive((power, digits)) => ("", power, digits),
        };
        let places = usize::try_from(power + 1).unwrap_or_default();
        if digits.len() <= places
            && let Ok(whole) = format!("{sign}{digits:0<places$}").parse()
        {
            return Bson::Int64(whole);
        }
        let length = i32::try_from(digits.len()).unwrap_or_default();
        let text = format!("{sign}{digits}E{}", power + 1 - length);
        let double = text.parse().map(Bson::Double).ok();
        let double = double.filter(|double| Self::of(double).as_ref() == Some(&self));
        // What is no double was read from a decimal.
        double.unwrap_or_else(|| text.parse::<Decimal128>().map_or(Bson::Null, Bson::Decimal128))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two to the power of 63: the smallest double above all 64-bit integers.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    fn value(value: &Bson) -> Number {
        Number::of(value).unwrap()
    }

    #[test]
    fn numbers_are_in_the_order_of_their_exact_values() {
        // The double nearest to 0.1 is slightly larger than it, the one nearest to 0.3 slightly smaller.
        let rising = [
            Bson::Double(f64::NAN),
            Bson::Double(f64::NEG_INFINITY),
            decimal("-9E+6144"),
            Bson::Double(f64::MIN),
            decimal("-9223372036854775809"),
            Bson::Int64(i64::MIN),
            Bson::Double(-0.1),
            decimal("-0.1"),
            decimal("-1E-6000"),
            Bson::Int32(0),
            decimal("1E-6000"),
            Bson::Double(5e-324),
            decimal("0.1"),
            Bson::Double(0.1),
            decimal("0.1000000000000000055511151231257828"),
            Bson::Double(0.3),
            decimal("0.3"),
            Bson::Int64(7),
            decimal("7.00000000000000000001"),
            decimal("7.1"),
            Bson::Int64(i64::MAX),
            decimal("9223372036854775807.5"),
            Bson::Double(BEYOND),
            decimal("9223372036854775809"),
            Bson::Double(f64::MAX),
            decimal("9.9E+6144"),
            decimal("Infinity"),
        ];
        for (at, one) in rising.iter().enumerate() {
            for (beside, other) in rising.iter().enumerate() {
                assert_eq!(value(one).cmp(&value(other)), at.cmp(&beside), "{one} {other}");
                let form = |number| format!("{:?}", value(number).into_bson());
                let same = form(one) == form(other);
                assert_eq!(same, at == beside, "{one} {other}");
            }
        }
    }
}
