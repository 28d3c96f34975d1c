import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { ATTACKS, runAttack } from '../support/attacks.ts'
import { mustCall } from '../support/api.ts'
import { runWellBehavedClient } from '../support/well-behaved-client.ts'
import { residentMib } from '../support/process-memory.ts'
import { noteFault } from '../support/reliability.ts'
import { createSecondOrg } from '../support/second-org.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

/** How long each attack lasts, in milliseconds. */
const ATTACK_MS = 3_000
/** The most by which the server's memory may have grown after an attack, in MiB. It includes uncollected garbage. */
const GROWTH_MIB = 400
/** The address of the attackers. The client whose requests must be answered uses another one. */
const ADDRESS = '127.0.0.66'

let server: RealServer
let hostileKey = ''
let volume = ''
before(async () => {
  server = await startServer({ SANDYARD_DRIVER: 'simulated', SANDYARD_LOG_LEVEL: 'error' })
  hostileKey = await createSecondOrg(server.dataDir, 'hostile')
  const hostile = { url: server.url, key: hostileKey }
  volume = (await mustCall(hostile, 'get_default_volume')).id
})
after(() => server.close())

for (const attack of ATTACKS) {
  test(`${attack.what}: every request of another organization is answered meanwhile, and the attack leaves nothing behind`, async () => {
    const { url, key } = server
    const over = new AbortController()
    const target = { port: Number(new URL(url).port), key: attack.hasKey ? hostileKey : '', address: ADDRESS, volume }
    const beforeMib = residentMib(server.pid())
    const saidBefore = server.output().length
    const attacking = runAttack(attack, target, over.signal)
    const using = runWellBehavedClient({ url, key }, `modest-${String(ATTACKS.indexOf(attack))}`, over.signal)
    await systemClock.sleep(ATTACK_MS)
    const peakMib = residentMib(server.pid())
    over.abort()
    const [tried, seen] = await Promise.all([attacking, using])
    assert.deepEqual(seen.failures, [])
    assert.ok(seen.latenciesMs.length > 0)
    assert.ok(tried.connections >= attack.connections, 'it was tried')
    assert.equal(server.output().slice(saidBefore), '', 'nothing of it is an error of the server')
    await waitUntil(() => residentMib(server.pid()) < beforeMib + GROWTH_MIB, 60_000)
    noteFault({
      area: 'clients',
      fault: `${attack.what}, ${attack.hasKey ? 'with the key of another organization' : 'without a key'}`,
      injected: Math.max(tried.sent, tried.connections),
      checked: `each read and create of another organization is answered 200; memory grows by less than ${String(GROWTH_MIB)} MiB`,
      found: `${String(seen.latenciesMs.length)} requests answered, ${String(seen.failures.length)} failed; ${String(beforeMib)} MiB before, ${String(peakMib)} at its end, ${String(residentMib(server.pid()))} afterwards`,
    })
  })
}
