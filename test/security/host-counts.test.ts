import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { hasErrorCode } from '../../src/lib/error-code.ts'
import { makeLog } from '../../src/lib/log.ts'
import { folderHash } from '../support/folder-hash.ts'
import { openSandboxNetworks } from '../../src/worker/network/open-sandbox-networks.ts'
import { makeContainerGuests } from '../../src/worker/drivers/oci/exec/container-guests.ts'
import { loadPtyBinding } from '../../src/worker/drivers/oci/exec/pty-binding.ts'
import { makeLauncher } from '../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { makeCommandHelper } from '../../src/worker/processes/command-helper.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { makeSeededChoices, type SeededChoices } from '../fault/seeded-choices.ts'
import { connectAgent, type AgentClient } from '../support/agent-client.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { countHost, mountKeys, type HostCounts } from '../support/host-counts.ts'
import { MISBEHAVIOURS } from '../support/misbehaviours.ts'
import { bind, desiredRunWithMounts, named, tmpfs } from '../support/mounts.ts'
import { DEFAULT_NETWORK, networksOptions } from '../support/networks.ts'
import { makeOciFixture, whyNoOci } from '../support/oci-driver.ts'
import { isOnOwnMachine } from '../support/own-network.ts'
import { UNLIMITED_SESSIONS } from '../support/container.ts'
import { attack } from '../support/security-attack.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

const SEED_VARIABLE = 'SANDYARD_HOST_COUNTS_SEED'
const ROUNDS_VARIABLE = 'SANDYARD_HOST_COUNTS_ROUNDS'
const ROUNDS = Number(process.env[ROUNDS_VARIABLE] ?? 4)
/** How many ways of misbehaving a sandbox combines. */
const AT_ONCE = 3
/** How long the counts may differ after a sandbox is gone: the pools of disks and networks fill again. */
const SETTLE_MS = 15_000
const NEVER = new AbortController().signal

const SPECS: Readonly<Record<string, () => DesiredRun>> = {
  plain: () => makeDesiredRun(small({})),
  'with a network': () => makeDesiredRun(small({ network: DEFAULT_NETWORK })),
  'with volumes and a tmpfs': () =>
    desiredRunWithMounts(
      [bind('/', '/shared'), named('v', '/data'), tmpfs('/scratch')],
      small({ network: DEFAULT_NETWORK }),
    ),
  'with a disk of its own size': () =>
    makeDesiredRun(small({ resources: { memory_mib: 128, vcpus: 1, disk_size_mib: 64 }, network: DEFAULT_NETWORK })),
  restricted: () => makeDesiredRun(small({ security_profile: 'restricted' })),
}

/** Starts that fail, with the reasons that the driver may give. */
const BAD_STARTS: Readonly<Record<string, () => DesiredRun>> = {
  'an image that does not exist': () => makeDesiredRun(small({ image: 'elsewhere/none', network: DEFAULT_NETWORK })),
  'a mount out of its volume': () =>
    desiredRunWithMounts([tmpfs('/a'), bind('../..', '/b')], small({ network: DEFAULT_NETWORK })),
  'a patch of a path that exists': () =>
    makeDesiredRun(
      small({
        patches: [{ type: 'text', path: '/etc/passwd', content: 'x', mode: null, replace: false }],
        network: DEFAULT_NETWORK,
      }),
    ),
  'a program that does not exist': () => {
    const { runtime } = makeDesiredRun().spec
    return makeDesiredRun(
      small({ runtime: { ...runtime, entrypoint: ['/none'], workdir: '/etc/passwd' }, network: DEFAULT_NETWORK }),
    )
  },
}

type Attacker = {
  readonly driver: Driver
  readonly run: DesiredRun
  readonly initPid: number
  readonly agent: AgentClient
}

/** How a run ends before it is removed. */
const ENDS: Readonly<Record<string, (attacker: Attacker) => Promise<void>>> = {
  'a stop with grace': ({ driver, run }) => driver.stop(run.run_id, 300),
  'a stop without grace': ({ driver, run }) => driver.stop(run.run_id, 0),
  'its removal': ({ driver, run }) => driver.remove(run.run_id),
  'the death of its init': async ({ driver, run, initPid }) => {
    try {
      process.kill(initPid, 'SIGKILL')
    } catch (error) {
      if (!hasErrorCode(error, 'ESRCH')) throw error // the sandbox ended it already
    }
    await driver.stop(run.run_id, 0)
  },
  'its removal while commands start': async ({ driver, run, agent }) => {
    for (let i = 0; i < 5; i++) agent.exec({ cmd: 'sleep', args: ['600'], tty: i % 2 === 0 })
    await driver.remove(run.run_id)
  },
  'a stop and a removal at once': async ({ driver, run }) => {
    await Promise.all([driver.stop(run.run_id, 300), driver.remove(run.run_id)])
  },
}

if (isOnOwnMachine(import.meta.filename)) {
  attack(
    'leaves something on the host after its end: a process, a mount, a namespace, a rule, a descriptor',
    { target: 'host', attacker: 'root in a sandbox', finding: null, skip: whyNoOci() },
    async (t) => {
      const seed = Number(process.env[SEED_VARIABLE] ?? 1) // the same in every run; other seeds by the variable
      const repeat = `${SEED_VARIABLE}=${String(seed)} ${ROUNDS_VARIABLE}=${String(ROUNDS)}`
      t.diagnostic(repeat)
      const choices = makeSeededChoices(seed)
      const decks = {
        misbehaviours: makeDeck(MISBEHAVIOURS, choices),
        specs: makeDeck(SPECS, choices),
        ends: makeDeck(ENDS, choices),
        badStarts: makeDeck(BAD_STARTS, choices),
      }
      await using worker = await openWorker()
      const { driver } = worker

      async function misbehave(): Promise<string> {
        const [kind, makeRun] = decks.specs()
        const run = makeRun()
        const attacker = await worker.start(run)
        const done = Array.from({ length: AT_ONCE }, decks.misbehaviours)
        const { agent } = attacker
        const [first] = done.map(([, command], index) => {
          return agent.exec({ cmd: 'sh', args: ['-c', command], tty: index === 0 })
        })
        // The others may fail to start, because one of them may end the sandbox.
        await agent.next(({ id, type }) => id === first && type !== 'core.exec.stdout')
        await systemClock.sleep(choices.below(600))
        begun += agent.received.filter(({ type }) => type === 'core.exec.started').length
        const [end, finish] = decks.ends()
        if (choices.chance(50)) await attacker.agent.hangUp()
        await finish(attacker)
        await driver.remove(run.run_id)
        await attacker.agent.hangUp()
        await driver.discard(run.sandbox_id)
        return `a sandbox ${kind}; ${done.map(([what]) => what).join(', ')}; ended by ${end}`
      }

      async function failToStart(): Promise<string> {
        const [what, makeRun] = decks.badStarts()
        const run = makeRun()
        await assert.rejects(driver.start(run, NEVER), what)
        await driver.remove(run.run_id)
        await driver.discard(run.sandbox_id)
        return `a start with ${what}`
      }

      async function giveUpStart(): Promise<string> {
        const [kind, makeRun] = decks.specs()
        const run = makeRun()
        const given = new AbortController()
        const started = driver.start(run, given.signal).catch(() => undefined)
        await systemClock.sleep(choices.below(120))
        given.abort()
        await Promise.all([started, driver.remove(run.run_id)])
        await driver.remove(run.run_id)
        await driver.discard(run.sandbox_id)
        return `a start of a sandbox ${kind} that was given up`
      }

      await worker.warmUp()
      const before = await worker.settledCounts()
      let begun = 0
      for (let round = 0; round < ROUNDS; round++) {
        const history = [await misbehave(), await failToStart(), await giveUpStart()]
        const after = await worker.countsOnce(before)
        assert.deepEqual(after, before, `${repeat}, round ${String(round)}: ${history.join('; ')}`)
      }
      const total = Object.values(before).reduce((sum, count) => sum + count, 0)
      assert.ok(begun >= ROUNDS, `only ${String(begun)} commands began`)
      return {
        tries: begun + ROUNDS * 2,
        outcome: `${String(Object.keys(before).length)} kinds of things, ${String(total)} in all, were as many as before after each of ${String(ROUNDS)} rounds (seed ${String(seed)})`,
      }
    },
  )
}

async function openWorker() {
  await using cleanups = new AsyncDisposableStack()
  const foreignMounts = mountKeys()
  const fixture = await makeOciFixture()
  cleanups.defer(() => fixture.remove())
  const log = makeLog('silent')
  const helper = makeCommandHelper(log)
  cleanups.defer(() => helper.close())
  const launcher = makeLauncher(log)
  cleanups.defer(() => launcher.close())
  const options = cleanups.use(await networksOptions({ commands: helper.commands }))
  const networks = await openSandboxNetworks(options)
  cleanups.defer(() => networks.close())
  const driver = await fixture.open({}, { networks, launcher, commands: helper.commands })
  cleanups.defer(() => driver.close())
  cleanups.defer(async () => {
    for (const { run_id } of await driver.list()) await driver.remove(run_id)
  })
  const guests = makeContainerGuests({ log, launcher, sessions: UNLIMITED_SESSIONS, pty: loadPtyBinding() })
  const scope = { folder: fixture.dir, cgroup: folderHash(`${fixture.dir}/state`), foreignMounts }

  async function start(run: DesiredRun): Promise<Attacker> {
    await driver.start(run, NEVER)
    const channel = await driver.openChannel(run.run_id)
    channel.destroy()
    const container = fixture.container(run.run_id)
    return { driver, run, initPid: container.initPid, agent: connectAgent(guests.of(container)) }
  }
  /** Counts until the counts are `wanted`, or the time is over. Resolves with the last counts. */
  async function countsOnce(wanted: HostCounts): Promise<HostCounts> {
    const endMs = systemClock.monotonicMs() + SETTLE_MS * TIMEOUT_FACTOR
    for (;;) {
      const counts = await countHost(scope)
      if (isDeepStrictEqual(counts, wanted) || systemClock.monotonicMs() > endMs) return counts
      await systemClock.sleep(50)
    }
  }
  const closing = cleanups.move()
  return {
    driver,
    fixture,
    start,
    countsOnce,
    /** Starts enough at once that every helper process runs and everything that is opened once is open. */
    async warmUp(): Promise<void> {
      const attackers = await Promise.all(Object.values(SPECS).map((makeRun) => start(makeRun())))
      for (const { agent, run } of attackers) {
        for (const tty of [true, false]) await agent.finish(agent.exec({ cmd: 'true', tty }))
        await agent.hangUp()
        await driver.remove(run.run_id)
        await driver.discard(run.sandbox_id)
      }
    },
    /** The counts once they stay the same for a second: the pools are full. */
    async settledCounts(): Promise<HostCounts> {
      let last = await countHost(scope)
      for (let since = systemClock.monotonicMs(); systemClock.monotonicMs() < since + 1500;) {
        const counts = await countHost(scope)
        if (!isDeepStrictEqual(counts, last)) since = systemClock.monotonicMs()
        last = counts
      }
      return last
    },
    [Symbol.asyncDispose]: () => closing.disposeAsync(),
  }
}

function small(spec: Partial<SandboxSpec>): Partial<SandboxSpec> {
  return { resources: { memory_mib: 128, vcpus: 1, disk_size_mib: null }, ...spec }
}

/** Draws entries at random, and each of them once before any of them again. */
function makeDeck<T>(from: Readonly<Record<string, T>>, choices: SeededChoices): () => readonly [string, T] {
  let left: (readonly [string, T])[] = []
  return () => {
    if (left.length === 0) left = Object.entries(from)
    const drawn = choices.pick(left)
    left = left.filter((entry) => entry !== drawn)
    return drawn
  }
}
