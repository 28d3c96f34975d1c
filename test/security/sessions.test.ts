import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import { makeLog } from '../../src/lib/log.ts'
import { makeSessionPermits, sessionLimitsFor, type SessionPermits } from '../../src/worker/channel/session-permits.ts'
import type { Container } from '../../src/worker/drivers/oci/container.ts'
import { makeGuest } from '../support/container-guest.ts'
import { loadPtyBinding } from '../../src/worker/drivers/oci/exec/pty-binding.ts'
import { makeLauncher } from '../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { connectAgent, type AgentClient } from '../support/agent-client.ts'
import { openAttackedDriver, type AttackedDriver } from '../support/attacked-driver.ts'
import { testRuntime, whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'

const skip = whyNoOci()
const log = makeLog('silent')
const START_LIMIT_MS = 60_000

attack(
  "takes the worker's descriptors and processes by hundreds of commands",
  { target: 'neighbours', attacker: 'a tenant with an API key', finding: 10, skip },
  async (t) => {
    await using attacked = await openAttackedDriver()
    const launcher = makeLauncher(log)
    t.after(() => {
      launcher.close()
    })
    const limits = sessionLimitsFor(100_000, { perSandbox: 24, perOrg: 32 })
    const sessions = makeSessionPermits(limits)
    const connect = async (org: string): Promise<{ readonly client: AgentClient; readonly container: Container }> => {
      const container = { ...(await startContainer(attacked)), orgId: asId<OrgId>(org) }
      const client = connectAgent(makeGuest(container, { log, launcher, sessions, pty: null }))
      t.after(() => client.hangUp())
      return { client, container }
    }
    const attackers = [await connect('attacker'), await connect('attacker')]
    const victim = await connect('victim')
    const before = countDescriptors()
    const tryMany = async ({ client }: { readonly client: AgentClient }): Promise<readonly string[]> => {
      const tries = Array.from({ length: 150 }, () => client.exec({ cmd: 'sleep', args: ['60'] }))
      return Promise.all(
        tries.map(async (id) => {
          const isAnswer = (type: string): boolean => type === 'core.exec.started' || type === 'core.exec.failed'
          const { payload } = await client.next(
            (message) => message.id === id && isAnswer(message.type),
            START_LIMIT_MS,
          )
          return payload['kind'] === undefined ? 'started' : `${textOf(payload['kind'])}: ${textOf(payload['message'])}`
        }),
      )
    }
    const kinds: string[] = [] // the first reaches the limit of its sandbox, the second that of the organization
    for (const attacker of attackers) kinds.push(...(await tryMany(attacker)))
    const started = kinds.filter((kind) => kind === 'started').length
    assert.equal(started, limits.perOrg)
    const refusals = [...new Set(kinds.filter((kind) => kind !== 'started'))]
    assert.deepEqual(refusals.toSorted(), [
      'resource_limit: too many open sessions: this organization has 32, the most it may have (SANDYARD_SESSIONS_PER_ORG)',
      'resource_limit: too many open sessions: this sandbox has 24, the most it may have (SANDYARD_SESSIONS_PER_SANDBOX)',
    ])
    const held = await waitUntil(() => {
      const count = countDescriptors() - before // for a moment, programs that make pipes hold more
      return count <= 3 * limits.perOrg && count
    })

    const answer = await victim.client.finish(victim.client.exec({ cmd: 'echo', args: ['works'] }))
    assert.equal(answer.stdout, 'works\n')

    const perCommand = testRuntime() === 'runsc' ? 1 : 0 // an `exec` command of gVisor waits for its process
    await waitUntil(() => attackers.flatMap(({ container }) => processesOf(container)).length <= perCommand * started)
    const outside = processesWith(attackers.map(({ container }) => container.id)).filter(
      (pid) => !readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes('.commands'),
    )
    assert.deepEqual(
      outside.map(commandLine).filter((line) => line.includes(' exec --')),
      [],
    )
    return {
      tries: kinds.length,
      outcome: `${String(started)} commands ran and the others were refused; they held ${String(held)} descriptors and ${String(perCommand * started)} processes of the host, and another organization's command ran`,
    }
  },
)

test(
  'a session is counted until its output is closed, and then another one can be opened',
  { skip: skip ?? false },
  async (t) => {
    await using attacked = await openAttackedDriver()
    const launcher = makeLauncher(log)
    const sessions = makeSessionPermits({ perSandbox: 1, perOrg: 8, total: 8 })
    const container = await startContainer(attacked)
    const client = connectAgent(makeGuest(container, { log, launcher, sessions, pty: null }))
    t.after(async () => {
      await client.hangUp()
      launcher.close()
    })
    const background = client.exec({ cmd: 'sh', args: ['-c', 'echo up; sleep 2 & exit'] })
    await waitUntil(() => client.text(background) === 'up\n')
    const refused = await client.finish(client.exec({ cmd: 'true' }))
    assert.equal(refused.last.payload['kind'], 'resource_limit')
    const connection = client.next((message) => message.type === 'core.tcp.failed')
    client.send(77, 'core.tcp.connect', { host: '127.0.0.1', port: 1 })
    assert.match(String((await connection).payload['error']), /too many open sessions: this sandbox has 1/)
    await client.finish(background)
    assert.equal((await client.finish(client.exec({ cmd: 'true' }))).code, 0)
  },
)

attack(
  'stops its new commands before they run, so that their sessions stay open',
  { target: 'host', attacker: 'root in a sandbox', finding: null, skip },
  async (t) => {
    await using attacked = await openAttackedDriver()
    const launcher = makeLauncher(log)
    const open = new Set<object>()
    const sessions: SessionPermits = {
      acquire(owner) {
        open.add(owner)
        return () => void open.delete(owner)
      },
    }
    const container = await startContainer(attacked)
    const guest = makeGuest(container, {
      log,
      launcher,
      sessions,
      pty: loadPtyBinding(),
      startTimeoutMs: 5_000,
    })
    const client = connectAgent(guest)
    t.after(async () => {
      await client.hangUp()
      launcher.close()
    })
    const stopper = client.exec({ cmd: 'sh', args: ['-c', 'echo up; while :; do kill -STOP -1; done'] })
    await waitUntil(() => client.text(stopper) === 'up\n')
    const failures: string[] = []
    let ran = 0
    // Some commands run before they are stopped, so this repeats until the attack worked.
    while (failures.length === 0 && ran < 60) {
      const ids = Array.from({ length: 6 }, (_, at) => client.exec({ cmd: 'true', tty: at % 2 === 0 }))
      const answers = await Promise.all(ids.map((id) => client.next((message) => message.id === id)))
      for (const { type, payload } of answers) {
        if (type === 'core.exec.failed') failures.push(textOf(payload['message']))
        else ran += 1
      }
    }
    assert.ok(failures.length > 0 || testRuntime() !== 'crun', 'no command was stopped before it ran')
    for (const message of failures) assert.match(message, /could not start the process/)
    assert.ok(open.size <= 1 + ran, `${String(open.size)} sessions are open, ${String(ran)} commands ran`)
    return {
      tries: failures.length + ran,
      outcome: `${String(failures.length)} commands were stopped before they ran; each was reported as failed and freed its session`,
    }
  },
)

test('the limits follow the limit of open files, and one organization gets at most half of all sessions', () => {
  const wanted = { perSandbox: 256, perOrg: 1024 }
  assert.deepEqual(sessionLimitsFor(20_000, wanted), { perSandbox: 256, perOrg: 1024, total: 2500 })
  assert.deepEqual(sessionLimitsFor(1024, wanted), { perSandbox: 64, perOrg: 64, total: 128 })
  assert.deepEqual(sessionLimitsFor(Infinity, wanted), { perSandbox: 256, perOrg: 1024, total: Infinity })
})

async function startContainer(attacked: AttackedDriver): Promise<Container> {
  const run = await attacked.start()
  ;(await attacked.driver.openChannel(run.run_id)).destroy()
  return attacked.fixture.container(run.run_id)
}

function countDescriptors(): number {
  return readdirSync('/proc/self/fd').length
}

function processesOf({ commandCgroups }: Container): readonly string[] {
  const pids = commandCgroups.find((path) => path.includes('/pids/')) ?? commandCgroups[0] ?? ''
  return readFileSync(pids, 'utf8').split('\n').filter(Boolean)
}

/** The processes of this machine with one of these words in their command line. */
function processesWith(words: readonly string[]): readonly string[] {
  return readdirSync('/proc').filter(
    (pid) => /^\d+$/.test(pid) && words.some((word) => commandLine(pid).includes(word)),
  )
}

function commandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
  } catch {
    return '' // it has ended
  }
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value)
}
