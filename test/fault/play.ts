import { converge } from './converge.ts'
import { openLane, type Lane } from './lane.ts'
import { EVERYTHING_ON, inWorld, type Outcome, type Switches } from './schedule.ts'
import { ALL_STEPS, playSteps } from './steps.ts'

export type PlayOptions = {
  readonly switches?: Switches
  /** Plays so many steps of the schedule and no more, before all comes to rest. */
  readonly steps?: number
}

/** Plays the schedule of a seed to its end: its steps with their faults, then none, until all is at rest. */
export function playSeed(lane: Lane, seed: number, options: PlayOptions = {}): Promise<Outcome> {
  const { switches = EVERYTHING_ON, steps = ALL_STEPS } = options
  return inWorld(lane, { seed, switches }, async (world) => {
    await playSteps(world, steps)
    await converge(world)
  })
}

/** What came of many schedules. */
export type Played = {
  readonly schedules: number
  readonly counts: ReadonlyMap<string, number>
  readonly failed: readonly number[]
}

/** After so many failures nothing new is learned. */
const MOST_FAILURES = 3

/** Plays seeds one after another in each lane, the lanes beside each other. */
export async function playMany(
  lanes: readonly Lane[],
  { from, count }: { readonly from: number; readonly count: number },
): Promise<Played> {
  const counts = new Map<string, number>()
  const failed: number[] = []
  let next = from
  let schedules = 0
  const playLane = async (lane: Lane): Promise<void> => {
    while (next < from + count && failed.length < MOST_FAILURES) {
      const seed = next++
      const outcome = await playSeed(lane, seed)
      schedules += 1
      for (const [what, times] of outcome.counts) counts.set(what, (counts.get(what) ?? 0) + times)
      if (outcome.breach !== null) failed.push(seed)
    }
  }
  await Promise.all(lanes.map(playLane))
  return { schedules, counts, failed }
}

/** The first seed of some that breaks a law with something switched off, and the words of the breach; null when none does. */
export async function firstBreach(
  lane: Lane,
  { count, switches }: { readonly count: number; readonly switches: Switches },
): Promise<{ readonly seed: number; readonly words: string } | null> {
  for (let seed = 1; seed <= count; seed++) {
    const { breach } = await playSeed(lane, seed, { switches })
    if (breach !== null) return { seed, words: breach.message }
  }
  return null
}

/** What a person needs of a schedule that failed: the law, the fewest first steps that break one, and how to play it again. */
export async function explain(lane: Lane, seed: number): Promise<string> {
  let steps = 0
  while (steps < ALL_STEPS && (await playSeed(lane, seed, { steps })).breach === null) steps += 1
  const { breach, trace } = await playSeed(lane, seed, { steps })
  return [
    `seed ${String(seed)}, its first ${String(steps)} steps: ${breach?.stack ?? 'it does not fail again: something runs that no seed decides'}`,
    ...trace,
    `to play it again: ${SEED_VARIABLE}=${String(seed)} ${STEPS_VARIABLE}=${String(steps)} npm test -- test/fault`,
  ].join('\n')
}

export const SEED_VARIABLE = 'SANDYARD_FAULT_SEED'
export const STEPS_VARIABLE = 'SANDYARD_FAULT_STEPS'
export const SCHEDULES_VARIABLE = 'SANDYARD_FAULT_SCHEDULES'

/** Opens lanes, which are closed together. */
export async function openLanes(
  count: number,
): Promise<{ readonly lanes: readonly Lane[]; readonly close: () => Promise<void> }> {
  const lanes = await Promise.all(Array.from({ length: count }, () => openLane()))
  return {
    lanes,
    async close() {
      await Promise.all(lanes.map((lane) => lane.close()))
    },
  }
}
