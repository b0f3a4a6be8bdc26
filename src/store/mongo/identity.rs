//! Identity of the driver's clients: whether two handles belong to the same one.

use std::fmt::{self, Write};

use mongodb::Client;

/// Maximum number of characters of a client's description that are searched: it shows every server that the client
/// knows.
const LOOKED_THROUGH: usize = 1 << 20;

/// Returns a text by which clones of one driver client are recognised, for as long as one of them lives; `None` if this
/// release of the driver does not show it. In that case each handle counts as a separate client, which costs a change
/// stream each and does no harm.
///
/// The driver compares its clients by address and has no way to ask for it. Its description shows one: the address of
/// the tracker of the client's own tasks, which no other client has. Nothing else of the description is kept, and no
/// more of it is produced than necessary.
pub(crate) fn identity(client: &Client) -> Option<String> {
    let mut description = Description::default();
    // Ends with an error as soon as the identity is found.
    let _ = write!(description, "{client:?}");
    description.identity
}

/// The description of a driver client, up to its identity.
#[derive(Default)]
struct Description {
    shown: String,
    identity: Option<String>,
}

impl Write for Description {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const OWNER: &str = "TopologyShutdown {";
        const ADDRESS: &str = "inner: 0x";
        self.shown.push_str(text);
        if let Some(at) = self.shown.rfind(OWNER)
            && let Some(address) = self.shown[at..].find(ADDRESS)
        {
            let digits = &self.shown[at + address + ADDRESS.len()..];
            let end = digits.find(|character: char| !character.is_ascii_hexdigit());
            self.identity = end.filter(|end| *end > 0).map(|end| digits[..end].to_owned());
        }
        if self.identity.is_some() || self.shown.len() > LOOKED_THROUGH {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clones_are_one_client_and_others_are_not() {
        let client = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let other = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let known = identity(&client);
        assert!(
            known.is_some(),
            "this release of the driver shows no identity: {client:?}"
        );
        let handle = client.database("a").collection::<mongodb::bson::Document>("b");
        assert_eq!(identity(handle.client()), known);
        assert_ne!(identity(&other), known);
    }
}
