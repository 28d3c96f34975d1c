/** One schedule: a world that is made anew, steps that follow from a seed, and the laws after each of them. */
import { createHash } from 'node:crypto'
import { makeLog } from '../../src/lib/log.ts'
import { PLACEMENT_POLICIES } from '../../src/domain/workers/placement.ts'
import { makeAcks } from './acks.ts'
import { makeClients, type Clients } from './clients.ts'
import { makeGates, makeLife, type Ending, type Gate, type Gates } from './gates.ts'
import { LIMITS, type Lane } from './lane.ts'
import { ROW_LAWS, WORLD_LAWS, type Law, type Sight } from './laws.ts'
import { makeMachine, type Machine } from './machine.ts'
import { makeNetwork } from './network.ts'
import { bootReplica, type Replica, type ReplicaWorld } from './replica.ts'
import { makeSeeded, type Seeded } from './seeded.ts'
import { forgetful } from './sabotage.ts'
import { makeSimDatabase } from './sim-database.ts'
import { makeWakeBus } from './sim-wake.ts'
import { EMPTY, takeSnapshot, type Snapshot } from './snapshot.ts'
import type { WallClock } from './sim-clock.ts'

/** What a schedule may turn off, to see that the laws notice. */
export type Switches = {
  /** Whether workers destroy their runs before they are called lost. */
  readonly isFenced: boolean
  /** Whether other processes of each machine see to that when the worker can't. */
  readonly isWatched: boolean
  /** Whether the database keeps what it says that it keeps. */
  readonly keepsWord: boolean
}

export const EVERYTHING_ON: Switches = {
  isFenced: true,
  isWatched: true,
  keepsWord: true,
}

/** A law that does not hold. */
export class Breach extends Error {}

/** A replica's place: the processes that serve there one after another, on one machine. */
export type Seat = { readonly name: string; readonly wall: WallClock; replica: Replica; lives: number }

/** The world of one schedule. */
export type World = {
  readonly gates: Gates
  readonly seeded: Seeded
  readonly machines: readonly Machine[]
  readonly seats: readonly Seat[]
  readonly clients: Clients
  readonly seen: () => Snapshot
  readonly counts: Map<string, number>
  bootSeat(seat: Seat): void
  /** Opens a gate and waits until nothing runs; then looks at every law. */
  open(gate: Gate, ending: Ending): Promise<void>
  /** Does something at once, waits until nothing runs, and looks at every law. */
  act(words: string, work: () => void): Promise<void>
  /** Writes into the trace. */
  note(words: string): void
}

export type Outcome = {
  readonly hash: string
  readonly trace: readonly string[]
  readonly breach: Error | null
  readonly counts: ReadonlyMap<string, number>
}

const SIZE = { vcpus: 2, memory_mib: 4096, disk_mib: 65_536 }

/** Makes the world of a seed and lets `play` play in it; whatever it wrote is undone at the end. */
export async function inWorld(
  lane: Lane,
  { seed, switches }: { readonly seed: number; readonly switches: Switches },
  play: (world: World) => Promise<void>,
): Promise<Outcome> {
  const seeded = makeSeeded(seed)
  const gates = makeGates()
  const trace: string[] = []
  const counts = new Map<string, number>()
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1)
  const log = makeLog('silent')
  const isLimited = seeded.chance(30)
  const acks = makeAcks()
  let snapshot: Snapshot = EMPTY

  const names = seeded.chance(60) ? ['A', 'B'] : ['A']
  const world: ReplicaWorld = {
    gates,
    databaseOf: makeSimDatabase({ gates, store: switches.keepsWord ? lane.store : forgetful(lane.store, seeded) }),
    bus: makeWakeBus(gates),
    random: seeded.random,
    log,
    placement: seeded.pick(PLACEMENT_POLICIES),
    hasRivals: names.length > 1,
  }
  const seats: Seat[] = []
  for (const name of names) {
    const wall = { offsetMs: 0 }
    seats.push({ name, wall, lives: 1, replica: bootReplica(world, makeLife(`${name}.1`), wall) })
  }
  const choose = (): Replica | null => {
    const living = seats.filter(({ replica }) => !replica.life.isDead)
    return living.length === 0 ? null : seeded.pick(living).replica
  }
  const network = makeNetwork(gates, choose)
  const machines = lane.workers
    .slice(0, seeded.chance(60) ? 2 : 1)
    .map((id, at) =>
      makeMachine(
        { gates, network, random: seeded.random, log, ...switches },
        { name: `w${String(at + 1)}`, id, capacity: SIZE },
      ),
    )
  const clients = makeClients({ gates, caller: isLimited ? lane.limited : lane.free, seeded, acks })
  const capacityOf = new Map(machines.map(({ id }) => [String(id), SIZE]))
  const limits = isLimited ? LIMITS : null

  const holds = (law: Law, sight: Sight): void => {
    count('laws looked at')
    const breach = law.breach(sight)
    if (breach !== null) throw new Breach(`${law.sentence}: ${breach}`)
  }
  let hasAcks = 0
  const look = async (hasWritten: boolean): Promise<void> => {
    count('steps')
    const before = snapshot
    if (hasWritten) snapshot = await takeSnapshot(lane.store, snapshot)
    const sight: Sight = { before, after: snapshot, machines, capacityOf, limits, acks }
    const many = acks.created.size + acks.deleted.size + acks.stopped.size + acks.named.size
    if (hasWritten || many !== hasAcks) for (const law of ROW_LAWS) holds(law, sight)
    hasAcks = many
    for (const law of WORLD_LAWS) holds(law, sight)
  }

  const played: World = {
    gates,
    seeded,
    machines,
    seats,
    clients,
    seen: () => snapshot,
    counts,
    bootSeat(seat) {
      seat.lives += 1
      seat.replica = bootReplica(world, makeLife(`${seat.name}.${String(seat.lives)}`), seat.wall)
    },
    async open(gate, ending) {
      trace.push(`${String(gates.nowMs)} ${gate.life.name} ${gate.kind} ${gate.label}: ${ending}`)
      if (ending !== 'done') count(`${gate.kind} ${ending}`)
      await gate.open(ending)
      await gates.settle()
      const isOfLead = gate.label.startsWith('lead: ')
      await look(gate.kind === 'write' && !isOfLead && ending !== 'refused' && ending !== 'dies_before')
    },
    async act(words, work) {
      trace.push(`${String(gates.nowMs)} ${words}`)
      work()
      await gates.settle()
      await look(false)
    },
    note: (words) => void trace.push(`${String(gates.nowMs)} ${words}`),
  }

  await lane.store.begin()
  let breach: Error | null = null
  try {
    snapshot = await takeSnapshot(lane.store, snapshot)
    await play(played)
  } catch (error) {
    breach = error instanceof Error ? error : new Error(String(error))
  } finally {
    for (const { replica } of seats) replica.life.die()
    for (const { life } of machines) life?.die()
    await gates.settle()
    await lane.store.rollback()
  }
  trace.push(JSON.stringify([...snapshot.sandboxes.values(), ...snapshot.runs.values()]))
  return { hash: createHash('sha256').update(trace.join('\n')).digest('hex'), trace, breach, counts }
}
