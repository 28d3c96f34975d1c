/** One schedule: a new world, steps that follow from a seed, and a check of the invariants after each step. */
import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { makeLog } from '../../src/lib/log.ts'
import { PLACEMENT_POLICIES } from '../../src/domain/workers/placement.ts'
import { makeAcknowledgements, makeClients, type Clients } from './clients.ts'
import { makeGates, makeIncarnation, type Ending, type Gate, type Gates } from './gates.ts'
import { LIMITS, type Fixture } from './fixture.ts'
import { DATABASE_INVARIANTS, MACHINE_INVARIANTS, type Invariant, type InvariantInput } from './invariants.ts'
import { makeMachine, type Machine } from './machine.ts'
import { makeNetwork } from './network.ts'
import { startReplica, type Replica, type ReplicaWorld } from './replica.ts'
import { makeSeededChoices, type SeededChoices } from './seeded-choices.ts'
import { makeSimDatabase, withLostTransactions } from './sim-database.ts'
import { makeNotificationBus } from './sim-notifications.ts'
import { EMPTY_SNAPSHOT, takeSnapshot, type Snapshot } from './snapshot.ts'
import type { WallClock } from './sim-clock.ts'

/** Safety mechanisms that a test may turn off, to check that the invariants detect their absence. */
export type SafetyMechanisms = {
  /** Workers destroy their own runs at their renew deadline, before the control plane records the runs as lost. */
  readonly isFenced: boolean
  /**
   * Each machine has a watchdog, which kills the runs of a paused worker, and a launcher, which refuses late starts.
   */
  readonly isWatched: boolean
  /** The database keeps every transaction that it reports as committed. */
  readonly isDurable: boolean
}

export const ALL_MECHANISMS: SafetyMechanisms = {
  isFenced: true,
  isWatched: true,
  isDurable: true,
}

/** A violated invariant. The message describes the violation. */
export class Violation extends Error {}

/** The machine of one replica, with the server process that runs there now; `incarnations` counts its processes so far. */
export type ReplicaHost = { readonly name: string; readonly wall: WallClock; replica: Replica; incarnations: number }

/** Everything that one schedule simulates. */
export type World = {
  readonly gates: Gates
  readonly seeded: SeededChoices
  readonly machines: readonly Machine[]
  readonly hosts: readonly ReplicaHost[]
  readonly clients: Clients
  readonly snapshot: () => Snapshot
  readonly counts: Map<string, number>
  startReplica(host: ReplicaHost): void
  /** Opens a gate, waits until all code waits at gates, and checks every invariant. */
  openGate(gate: Gate, ending: Ending): Promise<void>
  /** Calls `work`, waits until all code waits at gates, and checks every invariant. Adds `description` to the trace. */
  act(description: string, work: () => void): Promise<void>
  trace(line: string): void
}

export type ScheduleResult = {
  /** The hash of the trace. Equal schedules have equal hashes. */
  readonly hash: string
  readonly trace: readonly string[]
  readonly violation: Error | null
  readonly counts: ReadonlyMap<string, number>
}

const SIZE = { vcpus: 2, memory_mib: 4096, disk_mib: 65_536 }

/** Creates the world of a seed and runs `play` in it. Rolls back everything that was written to the database. */
export async function runSchedule(
  fixture: Fixture,
  { seed, mechanisms }: { readonly seed: number; readonly mechanisms: SafetyMechanisms },
  play: (world: World) => Promise<void>,
): Promise<ScheduleResult> {
  const seeded = makeSeededChoices(seed)
  const gates = makeGates()
  const trace: string[] = []
  const counts = new Map<string, number>()
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1)
  const log = makeLog('silent')
  const isLimited = seeded.chance(30)
  const acknowledged = makeAcknowledgements()
  let snapshot: Snapshot = EMPTY_SNAPSHOT

  const names = seeded.chance(60) ? ['A', 'B'] : ['A']
  const world: ReplicaWorld = {
    gates,
    databaseOf: makeSimDatabase({
      gates,
      store: mechanisms.isDurable ? fixture.store : withLostTransactions(fixture.store, seeded),
    }),
    notifications: makeNotificationBus(gates),
    random: seeded.random,
    log,
    placement: seeded.pick(PLACEMENT_POLICIES),
    hasRivals: names.length > 1,
  }
  const hosts: ReplicaHost[] = []
  for (const name of names) {
    const wall = { offsetMs: 0 }
    hosts.push({ name, wall, incarnations: 1, replica: startReplica(world, makeIncarnation(`${name}.1`), wall) })
  }
  const chooseReplica = (): Replica | null => {
    const living = hosts.filter(({ replica }) => !replica.incarnation.isDead)
    return living.length === 0 ? null : seeded.pick(living).replica
  }
  const network = makeNetwork(gates, chooseReplica)
  const machines = fixture.workers
    .slice(0, seeded.chance(60) ? 2 : 1)
    .map((id, at) =>
      makeMachine(
        { gates, network, random: seeded.random, log, ...mechanisms },
        { name: `w${String(at + 1)}`, id, capacity: SIZE },
      ),
    )
  const clients = makeClients({
    gates,
    caller: isLimited ? fixture.limitedCaller : fixture.unlimitedCaller,
    seeded,
    acknowledged,
  })
  const capacityOf = new Map(machines.map(({ id }) => [String(id), SIZE]))
  const limits = isLimited ? LIMITS : null

  const check = (invariant: Invariant, input: InvariantInput): void => {
    count('invariants checked')
    const violation = invariant.findViolation(input)
    if (violation !== null) throw new Violation(`${invariant.statement}: ${violation}`)
  }
  let acknowledgedBefore = 0
  let changesBefore = fixture.store.changes
  // Three of four transactions change no row that an invariant reads. A snapshot after each took a quarter of a schedule's time.
  const checkAll = async (): Promise<void> => {
    count('steps')
    const before = snapshot
    const hasChanged = fixture.store.changes !== changesBefore
    changesBefore = fixture.store.changes
    if (hasChanged) snapshot = await takeSnapshot(fixture.store, snapshot)
    const input: InvariantInput = { before, after: snapshot, machines, capacityOf, limits, acknowledged }
    const acknowledgedNow =
      acknowledged.created.size + acknowledged.deleted.size + acknowledged.stopped.size + acknowledged.named.size
    if (hasChanged || acknowledgedNow !== acknowledgedBefore)
      for (const invariant of DATABASE_INVARIANTS) check(invariant, input)
    acknowledgedBefore = acknowledgedNow
    for (const invariant of MACHINE_INVARIANTS) check(invariant, input)
  }

  const simulated: World = {
    gates,
    seeded,
    machines,
    hosts,
    clients,
    snapshot: () => snapshot,
    counts,
    startReplica(host) {
      host.incarnations += 1
      host.replica = startReplica(world, makeIncarnation(`${host.name}.${String(host.incarnations)}`), host.wall)
    },
    async openGate(gate, ending) {
      trace.push(`${String(gates.nowMs)} ${gate.incarnation.name} ${gate.kind} ${gate.label}: ${ending}`)
      if (ending !== 'done') count(`${gate.kind} ${ending}`)
      await gate.open(ending)
      await gates.waitUntilIdle()
      await checkAll()
    },
    async act(description, work) {
      trace.push(`${String(gates.nowMs)} ${description}`)
      work()
      await gates.waitUntilIdle()
      await checkAll()
    },
    trace: (line) => void trace.push(`${String(gates.nowMs)} ${line}`),
  }

  await fixture.store.begin()
  let violation: Error | null = null
  try {
    snapshot = await takeSnapshot(fixture.store, snapshot)
    await play(simulated)
    if (!isDeepStrictEqual(await takeSnapshot(fixture.store, snapshot), snapshot))
      throw new Error('a statement changed rows of a snapshot, and mayChangeSnapshot missed it')
  } catch (error) {
    violation = error instanceof Error ? error : new Error(String(error))
  } finally {
    for (const { replica } of hosts) replica.incarnation.die()
    for (const { incarnation } of machines) incarnation?.die()
    await gates.waitUntilIdle()
    gates.end()
    await fixture.store.rollback()
  }
  trace.push(JSON.stringify([...snapshot.sandboxes.values(), ...snapshot.runs.values()]))
  return { hash: createHash('sha256').update(trace.join('\n')).digest('hex'), trace, violation, counts }
}
