//! `windtunnel topology list|show`: the named machines.

use std::process::ExitCode;

use super::{Failure, Outcome, print};
use windtunnel::hardware::{Size, Topology, registry};
use windtunnel::report::text;

#[derive(Debug, clap::Args)]
#[command(after_help = super::help::TOPOLOGY)]
pub struct Args {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// All of them.
    #[command(after_help = super::help::TOPOLOGY)]
    List,
    /// One, with the source of every number.
    #[command(after_help = super::help::TOPOLOGY)]
    Show {
        /// A name from the list, or a topology file.
        name: String,
        /// Nodes of it.
        #[arg(long, conflicts_with = "slice")]
        nodes: Option<u32>,
        /// A slice of it.
        #[arg(long)]
        slice: Option<String>,
        /// Draws its fabric: levels, how many of each, and the links between them.
        #[arg(long)]
        picture: bool,
    },
}

pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Sub::List => {
            let rows = registry().into_iter().map(|listed| {
                let mut name = listed.name.to_owned();
                for alias in listed.aliases {
                    name += &format!(", {alias}");
                }
                vec![name, listed.description]
            });
            print(&format!("{}\n", text::table(&["name", "what it is"], rows.collect(), 2)))?;
        }
        Sub::Show { name, nodes, slice, picture } => {
            let size = match (nodes, slice) {
                (Some(nodes), _) => Size::Nodes(*nodes),
                (None, Some(slice)) => Size::Slice(slice.clone()),
                (None, None) => Size::Smallest,
            };
            let topology = Topology::load(name, &size).map_err(Failure::input)?;
            print(&if *picture { topology.picture() } else { format!("{topology}\n") })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
