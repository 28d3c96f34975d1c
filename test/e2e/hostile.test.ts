import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { ATTACKER_LIMITS, ATTACKS, largeBody, startAttack } from '../support/attacks.ts'
import { mustCall } from '../support/api.ts'
import { forkClient } from '../support/forked-client.ts'
import { residentMib } from '../support/process-memory.ts'
import { noteFault } from '../support/reliability.ts'
import { openConnection } from '../support/raw-http.ts'
import { createSecondOrg } from '../support/second-org.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

/** How long each attack lasts at least, in milliseconds, so that it has time to do harm. */
const ATTACK_MS = 3_000
/** How many answers the other client must get during each attack. They include a create after the first one. */
const ANSWERS = 10
/** How long an attack may need to begin, and the other client for its answers, on a busy machine. */
const LIMIT_MS = 120_000
/** The most by which the server's memory may have grown after an attack, in MiB. It includes uncollected garbage. */
const GROWTH_MIB = 400
/** The most by which it may grow while an organization requests gigabytes and reads nothing. */
const UNREAD_GROWTH_MIB = 800
/** The address of the attackers. The client whose requests must be answered uses another one. */
const ADDRESS = '127.0.0.66'

let server: RealServer
let hostileKey = ''
let volume = ''
before(async () => {
  server = await startServer({ SANDYARD_DRIVER: 'simulated', SANDYARD_LOG_LEVEL: 'error' })
  hostileKey = await createSecondOrg(server.dataDir, 'hostile', ATTACKER_LIMITS)
  const hostile = { url: server.url, key: hostileKey }
  volume = (await mustCall(hostile, 'get_default_volume')).id
})
after(() => server.close())

for (const attack of ATTACKS) {
  test(`${attack.what}: every request of another organization is answered meanwhile, and the attack leaves nothing behind`, async () => {
    const { url, key } = server
    const target = { port: Number(new URL(url).port), key: attack.hasKey ? hostileKey : '', address: ADDRESS, volume }
    const beforeMib = residentMib(server.pid())
    const saidBefore = server.output().length
    await using attacking = startAttack(attack, target)
    await waitUntil(
      () => attacking.tally().connections >= attack.connections,
      LIMIT_MS,
      () => `${String(attacking.tally().connections)} of ${String(attack.connections)} connections of the attack`,
    )
    // The client starts after the attack began and stops before it ends, so each of its answers came meanwhile.
    const fromMs = systemClock.monotonicMs()
    await using client = forkClient({ url, key }, `modest-${String(ATTACKS.indexOf(attack))}`)
    await waitUntil(
      () => client.answers.length >= ANSWERS && systemClock.monotonicMs() - fromMs >= ATTACK_MS,
      LIMIT_MS,
      () => `${String(client.answers.length)} of ${String(ANSWERS)} answers during the attack`,
    )
    const peakMib = residentMib(server.pid())
    const answers = await client.stop()
    const tried = await attacking.stop()
    assert.deepEqual(answers.filter(({ failure }) => failure !== null), []) // prettier-ignore
    assert.equal(server.output().slice(saidBefore), '', 'nothing of it is an error of the server')
    await waitUntil(
      () => residentMib(server.pid()) < beforeMib + GROWTH_MIB,
      60_000,
      () => `${String(residentMib(server.pid()))} MiB are in use, ${String(beforeMib)} before the attack`,
    )
    const slowestMs = Math.round(Math.max(...answers.map(({ latencyMs }) => latencyMs)))
    noteFault({
      area: 'clients',
      fault: `${attack.what}, ${attack.hasKey ? 'with the key of another organization' : 'without a key'}`,
      injected: Math.max(tried.sent, tried.connections),
      checked: `each read and create of another organization is answered 200; memory grows by less than ${String(GROWTH_MIB)} MiB`,
      found: `${String(answers.length)} requests answered, none failed, the slowest after ${String(slowestMs)} ms; ${String(beforeMib)} MiB before, ${String(peakMib)} at its end, ${String(residentMib(server.pid()))} afterwards`,
    })
  })
}

test('gigabytes of large sandboxes that an organization requests and does not read take little of the server’s memory', async () => {
  const { url, key } = server
  const greedy = { url, key: await createSecondOrg(server.dataDir, 'greedy', ATTACKER_LIMITS) }
  const { id } = await mustCall(greedy, 'create_sandbox', { body: largeBody() })
  const beforeMib = residentMib(server.pid())
  const sockets = Array.from({ length: 700 }, () => {
    const { socket } = openConnection(Number(new URL(url).port), ADDRESS)
    socket.pause()
    socket.write(`GET /v1/sandboxes/${id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${greedy.key}\r\n\r\n`)
    return socket
  })
  let peakMib = 0
  const watching = setInterval(() => {
    peakMib = Math.max(peakMib, residentMib(server.pid()))
  }, 100)
  const fromMs = systemClock.monotonicMs()
  await using client = forkClient({ url, key }, 'frugal')
  await waitUntil(
    () => client.answers.length >= ANSWERS && systemClock.monotonicMs() - fromMs >= ATTACK_MS,
    LIMIT_MS,
    () => `${String(client.answers.length)} of ${String(ANSWERS)} answers`,
  )
  const answers = await client.stop()
  clearInterval(watching)
  for (const socket of sockets) socket.destroy()
  assert.deepEqual(answers.filter(({ failure }) => failure !== null), []) // prettier-ignore
  assert.ok(peakMib < beforeMib + UNREAD_GROWTH_MIB, `${String(peakMib)} MiB were in use, ${String(beforeMib)} before`)
})
