//! Numbers as the server compares them: by their exact values, whatever their types.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Decimal128};

/// Two to the power of 63: the smallest double above all 64-bit integers.
const BEYOND: f64 = 9_223_372_036_854_775_808.0;

/// Largest coefficient of a decimal; the bits of a larger one stand for zero.
const COEFFICIENT_MOST: u128 = 10_u128.pow(34) - 1;

/// Offset that is added to a decimal's exponent in its bits, and the largest exponent.
const BIAS: i32 = 6_176;
const EXPONENT_MOST: i32 = 6_111;

/// Digits after the first that write out any double exactly.
const DIGITS_OF_DOUBLE: usize = 800;

/// The value of a number. Equal numbers of different types have the same value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Whole(i64),
    /// A number that is not an integer within the range of `Whole`.
    Double(f64),
    /// A number that is neither an integer in that range nor a double.
    Decimal(Decimal),
}

/// A finite decimal that is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// Not divisible by ten, unless the exponent is the largest.
    coefficient: u128,
    exponent: i32,
}

impl Number {
    /// Returns the value of a BSON number; `None` for anything else.
    pub(super) fn of(value: &Bson) -> Option<Self> {
        match value {
            Bson::Int32(number) => Some(Self::Whole(i64::from(*number))),
            Bson::Int64(number) => Some(Self::Whole(*number)),
            Bson::Double(number) => Some(Self::of_double(*number)),
            Bson::Decimal128(number) => Some(Self::of_decimal(number)),
            _ => None,
        }
    }

    /// Returns the value in one type, the same for all types in which it can be written.
    pub(super) fn into_bson(self) -> Bson {
        match self {
            Self::Whole(number) => Bson::Int64(number),
            Self::Double(number) => Bson::Double(number),
            Self::Decimal(number) => Bson::Decimal128(number.pack()),
        }
    }

    pub(super) fn is_nan(self) -> bool {
        matches!(self, Self::Double(number) if number.is_nan())
    }

    fn of_double(number: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "whole, and within the bounds")]
        if number.is_nan() {
            // There are many NaNs, and the server treats all of them as equal.
            Self::Double(f64::NAN)
        } else if number.fract() == 0.0 && (-BEYOND..BEYOND).contains(&number) {
            Self::Whole(number as i64)
        } else {
            Self::Double(number)
        }
    }

    fn of_decimal(number: &Decimal128) -> Self {
        let bits = u128::from_le_bytes(number.bytes());
        let negative = bits >> 127 == 1;
        // Among the five bits after the sign, four or five ones mark infinities and NaN.
        match (bits >> 122) & 0x1f {
            0x1f => return Self::Double(f64::NAN),
            0x1e => return Self::Double(if negative { f64::NEG_INFINITY } else { f64::INFINITY }),
            // The alternative encoding of a coefficient makes it too large.
            0x18.. => return Self::Whole(0),
            _ => {}
        }
        let mut coefficient = bits & ((1 << 113) - 1);
        if coefficient == 0 || coefficient > COEFFICIENT_MOST {
            return Self::Whole(0);
        }
        let exponent = i32::try_from((bits >> 113) & 0x3fff).unwrap_or_default();
        let mut exponent = exponent - BIAS;
        while coefficient.is_multiple_of(10) && exponent < EXPONENT_MOST {
            coefficient /= 10;
            exponent += 1;
        }
        let decimal = Decimal {
            negative,
            coefficient,
            exponent,
        };
        if let Some(whole) = decimal.whole() {
            return Self::Whole(whole);
        }
        let nearest = decimal.nearest();
        if nearest.is_finite() && decimal.is(nearest) {
            Self::of_double(nearest)
        } else {
            Self::Decimal(decimal)
        }
    }

    /// Compares two numbers by value; NaN comes before all others.
    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.cmp(&other),
            (Self::Double(one), Self::Double(other)) => {
                let order = one.partial_cmp(&other);
                order.unwrap_or_else(|| other.is_nan().cmp(&one.is_nan()))
            }
            (Self::Decimal(one), Self::Decimal(other)) => one.compare(other),
            (Self::Whole(one), Self::Double(other)) => compare_mixed(one, other),
            (Self::Double(one), Self::Whole(other)) => compare_mixed(other, one).reverse(),
            (Self::Decimal(one), Self::Whole(other)) => one.compare_whole(other),
            (Self::Whole(one), Self::Decimal(other)) => other.compare_whole(one).reverse(),
            (Self::Decimal(one), Self::Double(other)) => one.compare_double(other),
            (Self::Double(one), Self::Decimal(other)) => other.compare_double(one).reverse(),
        }
    }
}

impl Decimal {
    fn pack(self) -> Decimal128 {
        let exponent = u128::try_from(self.exponent + BIAS).unwrap_or_default();
        let bits = u128::from(self.negative) << 127 | exponent << 113 | self.coefficient;
        Decimal128::from_bytes(bits.to_le_bytes())
    }

    fn whole(self) -> Option<i64> {
        let power = 10_i128.checked_pow(u32::try_from(self.exponent).ok()?)?;
        let whole = i128::try_from(self.coefficient).ok()?.checked_mul(power)?;
        i64::try_from(if self.negative { -whole } else { whole }).ok()
    }

    /// Returns the nearest double.
    fn nearest(self) -> f64 {
        let sign = if self.negative { "-" } else { "" };
        let text = format!("{sign}{}e{}", self.coefficient, self.exponent);
        text.parse().unwrap_or(f64::NAN)
    }

    /// Reports whether it equals this finite double exactly: both are an odd number times a power of two.
    fn is(self, double: f64) -> bool {
        let bits = double.abs().to_bits();
        let (fraction, power) = (bits & ((1 << 52) - 1), i32::try_from(bits >> 52).unwrap_or_default());
        let (mantissa, power) = if power == 0 {
            (fraction, -1_074)
        } else {
            (fraction | 1 << 52, power - 1_075)
        };
        if mantissa == 0 {
            return false;
        }
        let twos = |count: u32| i32::try_from(count).unwrap_or_default();
        let odd_of_double = u128::from(mantissa >> mantissa.trailing_zeros());
        let odd = self.coefficient >> self.coefficient.trailing_zeros();
        let same_power =
            power + twos(mantissa.trailing_zeros()) == self.exponent + twos(self.coefficient.trailing_zeros());
        let Some(fives) = 5_u128.checked_pow(self.exponent.unsigned_abs()) else {
            return false;
        };
        let same_odd = if self.exponent >= 0 {
            odd.checked_mul(fives) == Some(odd_of_double)
        } else {
            odd_of_double.checked_mul(fives) == Some(odd)
        };
        same_power && same_odd && self.negative == double.is_sign_negative()
    }

    /// Returns the exponent of the first digit, and the digits.
    fn digits(self) -> (i32, String) {
        let digits = self.coefficient.to_string();
        let first = self.exponent + i32::try_from(digits.len()).unwrap_or_default() - 1;
        (first, digits.trim_end_matches('0').to_owned())
    }

    fn compare(self, other: Self) -> Ordering {
        let order = || self.digits().cmp(&other.digits());
        match (self.negative, other.negative) {
            (false, false) => order(),
            (true, true) => order().reverse(),
            (negative, other) => other.cmp(&negative),
        }
    }

    fn compare_whole(self, other: i64) -> Ordering {
        if other == 0 {
            return if self.negative {
                Ordering::Less
            } else {
                Ordering::Greater
            };
        }
        self.compare(Self {
            negative: other < 0,
            coefficient: u128::from(other.unsigned_abs()),
            exponent: 0,
        })
    }

    fn compare_double(self, other: f64) -> Ordering {
        let nearest = self.nearest();
        match nearest.partial_cmp(&other) {
            // NaN comes before all numbers.
            None => Ordering::Greater,
            // The decimal is beyond all doubles, and still less than infinity.
            Some(Ordering::Equal) if other.is_infinite() => {
                if self.negative {
                    Ordering::Greater
                } else {
                    Ordering::Less
                }
            }
            Some(Ordering::Equal) if other == 0.0 => self.compare_whole(0),
            Some(Ordering::Equal) if self.is(other) => Ordering::Equal,
            Some(Ordering::Equal) => {
                let text = format!("{:.DIGITS_OF_DOUBLE$e}", other.abs());
                let (digits, first) = text.split_once('e').unwrap_or((&text, ""));
                let digits = digits.replace('.', "").trim_end_matches('0').to_owned();
                let order = self.digits().cmp(&(first.parse().unwrap_or_default(), digits));
                if self.negative { order.reverse() } else { order }
            }
            Some(order) => order,
        }
    }
}

fn compare_mixed(whole: i64, double: f64) -> Ordering {
    if double.is_nan() || double < -BEYOND {
        return Ordering::Greater;
    }
    if double >= BEYOND {
        return Ordering::Less;
    }
    #[allow(clippy::cast_possible_truncation, reason = "whole, and within the bounds")]
    let floor = double.floor() as i64;
    whole.cmp(&floor).then(if double.fract() == 0.0 {
        Ordering::Equal
    } else {
        Ordering::Less
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    fn value(value: &Bson) -> Number {
        Number::of(value).unwrap()
    }

    #[test]
    fn equal_numbers_have_one_form() {
        let same = [
            (decimal("1E+3"), Bson::Int64(1_000)),
            (decimal("1000.000"), Bson::Int64(1_000)),
            (Bson::Double(1e16), Bson::Int64(10_000_000_000_000_000)),
            (decimal("1E+16"), Bson::Int64(10_000_000_000_000_000)),
            (Bson::Double(-0.0), Bson::Int64(0)),
            (decimal("-0E+6000"), Bson::Int64(0)),
            (Bson::Double(-BEYOND), Bson::Int64(i64::MIN)),
            (decimal("-9223372036854775808"), Bson::Int64(i64::MIN)),
            (decimal("9223372036854775808"), Bson::Double(BEYOND)),
            (decimal("0.50"), Bson::Double(0.5)),
            (decimal("1E+22"), Bson::Double(1e22)),
            (decimal("Infinity"), Bson::Double(f64::INFINITY)),
            (decimal("-Infinity"), Bson::Double(f64::NEG_INFINITY)),
            (decimal("1.10"), decimal("11E-1")),
            (decimal("1E+6144"), decimal("1.0E+6144")),
        ];
        for (one, other) in same {
            assert_eq!(value(&one).into_bson(), value(&other).into_bson(), "{one} {other}");
            assert_eq!(value(&one).compare(value(&other)), Ordering::Equal, "{one} {other}");
        }
        for nan in [
            decimal("NaN"),
            Bson::Double(-f64::NAN),
            Bson::Double(f64::from_bits(0x7ff0_0000_0000_0001)),
        ] {
            assert_eq!(value(&nan).into_bson().to_string(), Bson::Double(f64::NAN).to_string());
            assert!(value(&nan).is_nan());
        }
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
                assert_eq!(value(one).compare(value(other)), at.cmp(&beside), "{one} {other}");
                let form = |number| format!("{:?}", value(number).into_bson());
                let same = form(one) == form(other);
                assert_eq!(same, at == beside, "{one} {other}");
            }
        }
    }
}
