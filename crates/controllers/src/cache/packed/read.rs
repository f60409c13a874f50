//! Reads the packed form.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{Error, tag};

pub(super) struct Reader<'de> {
    pub(super) words: &'de [&'static str],
    pub(super) bytes: &'de [u8],
}

impl<'de> Reader<'de> {
    fn peek(&self) -> Result<u8, Error> {
        self.bytes.first().copied().ok_or_else(|| Error::custom("it ends in the middle"))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let byte = self.peek()?;
        self.bytes = &self.bytes[1..];
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            if shift > 63 {
                return Err(Error::custom("a number is too long"));
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    fn take(&mut self, length: u64) -> Result<&'de [u8], Error> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) =
            self.bytes.split_at_checked(length).ok_or_else(|| Error::custom("it ends in the middle"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn text(&mut self, length: u64) -> Result<&'de str, Error> {
        std::str::from_utf8(self.take(length)?).map_err(Error::custom)
    }

    fn word(&self, number: u64) -> Result<&'static str, Error> {
        let word = usize::try_from(number).ok().and_then(|number| self.words.get(number));
        word.copied().ok_or_else(|| Error::custom("a word that is not known"))
    }

    /// A text or a word, if one follows.
    fn name(&mut self) -> Result<Option<&'de str>, Error> {
        let first = self.peek()?;
        let name = match first {
            tag::LOW_WORD.. => {
                self.byte()?;
                self.word((first - tag::LOW_WORD).into())?
            }
            tag::SHORT_TEXT.. => {
                self.byte()?;
                self.text((first - tag::SHORT_TEXT).into())?
            }
            tag::TEXT => {
                self.byte()?;
                let length = self.varint()?;
                self.text(length)?
            }
            tag::WORD => {
                self.byte()?;
                let number = self.varint()?;
                self.word(number)?
            }
            _ => return Ok(None),
        };
        Ok(Some(name))
    }

    /// Whether a list or map ends here; its end is then behind.
    fn ends(&mut self) -> Result<bool, Error> {
        let ends = self.peek()? == tag::END;
        if ends {
            self.byte()?;
        }
        Ok(ends)
    }

    fn close(&mut self) -> Result<(), Error> {
        if self.ends()? { Ok(()) } else { Err(Error::custom("more than was asked for")) }
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Some(name) = self.name()? {
            return visitor.visit_borrowed_str(name);
        }
        match self.byte()? {
            tag::NULL => visitor.visit_unit(),
            tag::FALSE => visitor.visit_bool(false),
            tag::TRUE => visitor.visit_bool(true),
            tag::NUMBER => visitor.visit_u64(self.varint()?),
            tag::BELOW_ZERO => visitor.visit_i64(!self.varint()?.cast_signed()),
            tag::FLOAT => {
                let bytes: [u8; 8] = self.take(8)?.try_into().map_err(Error::custom)?;
                visitor.visit_f64(f64::from_le_bytes(bytes))
            }
            tag::LIST => {
                let value = visitor.visit_seq(&mut *self)?;
                self.close()?;
                Ok(value)
            }
            tag::MAP => {
                let value = visitor.visit_map(&mut *self)?;
                self.close()?;
                Ok(value)
            }
            small @ tag::SMALL_NUMBER.. => visitor.visit_u64((small - tag::SMALL_NUMBER).into()),
            other => Err(Error::custom(format!("{other:#04x} begins nothing"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek()? == tag::NULL {
            self.byte()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some(name) = self.name()? {
            return visitor.visit_enum(StrDeserializer::new(name));
        }
        if self.byte()? != tag::MAP {
            return Err(Error::custom("no variant"));
        }
        let value = visitor.visit_enum(&mut *self)?;
        self.close()?;
        Ok(value)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for &mut Reader<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        // The end stays for whoever began: a reader that wants no more elements never comes here.
        if self.peek()? == tag::END { Ok(None) } else { seed.deserialize(&mut **self).map(Some) }
    }
}

impl<'de> MapAccess<'de> for &mut Reader<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if self.peek()? == tag::END { Ok(None) } else { seed.deserialize(&mut **self).map(Some) }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut **self)
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = seed.deserialize(&mut *self)?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Err(Error::custom("a variant that holds something"))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }
}
