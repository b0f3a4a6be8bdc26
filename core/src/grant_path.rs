//! The ways in which a grant can arrive.

/// The way in which a grant arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// With the answer to the first request.
    AtOnce,
    /// From a task of the same client, in the write of its release or without the server.
    Local,
    /// Through a change event.
    Event,
    /// With the answer to a repeated request.
    Asking,
    /// By joining a hold of the same client.
    Reentered,
}

impl How {
    /// Returns the name by which telemetry knows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at_once",
            Self::Local => "local",
            Self::Event => "event",
            Self::Asking => "asking",
            Self::Reentered => "reentered",
        }
    }
}
