import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { after, before, test } from 'node:test'
import { call, mustCall, type SandboxBody } from '../../support/api.ts'
import { addKey } from '../../support/orgs.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'
import { replaceAuthority } from '../../../src/control/orgs/intercept-authorities.ts'
import type { RunInterception } from '../../../src/domain/network/interception.ts'
import { OPERATOR_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { DEFAULT_INTERCEPTION } from '../../../src/domain/spec/tls-interception.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeAuthority } from '../../../src/lib/make-authority.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'

// `network.tls` on its way from a request to the worker. The driver is simulated: it keeps what it gets.

let world: WorkerWorld
let api: { readonly url: string; readonly key: string }
const machine = makeSimulatedWorld()

before(async () => {
  world = await makeWorkerWorld()
  world.runWorker(makeSimulatedDriver({ clock: systemClock, world: machine }))
  const { deps, caller } = world.control
  await waitUntil(async () =>
    (await deps.workerAbilities(caller.org_id, { isFresh: true })).some((list) => list.includes('tls_interception')),
  )
  api = { url: world.url, key: await addKey(deps, caller.org_id) }
})
after(() => world.close())

function create(network: object): Promise<SandboxBody> {
  const body = { image: 'registry.example/box:1', network }
  return mustCall(api, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
}

/** What the worker got for the sandbox's latest run. */
function onWorker(id: string): RunInterception | null {
  const run = [...machine.runs.values()].findLast(
    ({ desired, observed }) => desired.sandbox_id === id && observed.phase === 'running',
  )
  return run?.desired.interception ?? null
}

const pem = (made: { readonly certificate: string }): string => `${made.certificate.trim()}\n`

test('the worker gets all options and an authority of the organization, and the reply shows no key', async () => {
  const other = pem(await makeAuthority('upstream', { nowMs: Date.now() }))
  const made = await create({
    tls: {
      enabled: true,
      intercepted_ports: [8443, 443, 443],
      bypass: ['Pinned.example.com', '*.bank.example'],
      block_quic_on_intercept: false,
      verify_upstream: true,
      upstream_ca_cert: [`# a comment\n${other}`],
      scoped_upstream_ca_cert: [{ pattern: '*.corp.example', path: other }],
      scoped_verify_upstream: [{ pattern: 'old.example', verify: false }],
      cache: { capacity: 5 },
      intercept_ca: { cert_path: null, key_path: null },
    },
  })
  const options = {
    intercepted_ports: [443, 8443],
    bypass: ['pinned.example.com', '*.bank.example'],
    verify_upstream: true,
    scoped_verify_upstream: [{ pattern: 'old.example', verify: false }],
    cache: { capacity: 5, validity_hours: 24 },
  }
  const { authority, ...got } = onWorker(made.id) ?? assert.fail()
  assert.deepEqual(got, {
    ...options,
    block_quic: false,
    upstream_ca_certs: [other],
    scoped_upstream_ca_certs: [{ pattern: '*.corp.example', certificate: other }],
  })
  assert.ok(new X509Certificate(authority.certificate).ca)
  assert.deepEqual(made.spec?.network.tls, {
    enabled: true,
    ...options,
    block_quic_on_intercept: false,
    upstream_ca_cert: [other],
    scoped_upstream_ca_cert: [{ pattern: '*.corp.example', path: other }],
    intercept_ca: { cert_path: null, key_path: null },
  })
})

test('secrets alone intercept port 443, and an organization has one authority until it is replaced', async () => {
  const secrets = { entries: [{ env_var: 'KEY', value: 'v', allowed_hosts: [{ type: 'any' }] }] }
  const [one, two] = [await create({ secrets }), await create({ tls: { enabled: true } })]
  const { intercept_ca_cert: _, block_quic_on_intercept: block_quic, ...defaults } = DEFAULT_INTERCEPTION
  const { authority, ...got } = onWorker(one.id) ?? assert.fail()
  assert.deepEqual(got, { ...defaults, block_quic })
  assert.equal(onWorker(two.id)?.authority.certificate, authority.certificate)
  const { deps, caller } = world.control
  await replaceAuthority(deps, { org_id: caller.org_id, actor: OPERATOR_ACTOR })
  const three = await create({ tls: { enabled: true } })
  assert.notEqual(onWorker(three.id)?.authority.certificate, authority.certificate)
  assert.equal(onWorker(one.id)?.authority.certificate, authority.certificate)
  // A change of a secret gives the run all its settings again, with the authority that its sandbox trusts.
  const change = { secrets: [{ name: 'KEY', value: 'w' }] }
  await call(api, 'modify_sandbox', { params: { sandbox_id: one.id }, body: change })
  await waitUntil(() => [...machine.runs.values()].some(({ desired }) => desired.secrets?.[0]?.value === 'w'))
  assert.equal(onWorker(one.id)?.authority.certificate, authority.certificate)
  // A lost sealing key costs the organization its authority, not its sandboxes.
  await world.control.asOwner(`UPDATE intercept_authorities SET key_sealed = '\\x01'`)
  assert.ok(onWorker((await create({ tls: { enabled: true } })).id))
})

test('a given authority is used, and its key is sealed, shown nowhere, and deleted with the sandbox', async () => {
  const given = await makeAuthority('given', { nowMs: Date.now() })
  const intercept_ca = { cert_path: given.certificate, key_path: given.key }
  const made = await create({ tls: { enabled: true, intercept_ca } })
  assert.deepEqual(onWorker(made.id)?.authority, { certificate: pem(given), key: given.key })
  assert.deepEqual(made.spec?.network.tls?.intercept_ca, { cert_path: pem(given), key_path: null })
  const { db } = world.control.deps
  const rows = async () =>
    db.asSystem((q) =>
      q.query<{ sealed: Buffer | null; all: string }>({
        text: 'SELECT tls_key_sealed AS sealed, s::text AS all FROM sandboxes s WHERE id = $1',
        values: [made.id],
      }),
    )
  const [before] = (await rows()).rows
  assert.ok(before?.sealed)
  assert.ok(!before.all.includes(given.key.split('\n')[1] ?? ''))
  await mustCall(api, 'delete_sandbox', { params: { sandbox_id: made.id } })
  assert.equal((await rows()).rows[0]?.sealed, null)
})

test('a run whose given key can not be unsealed does not start', async () => {
  const { certificate: cert_path, key: key_path } = await makeAuthority('lost', { nowMs: Date.now() })
  const network = { tls: { enabled: true, intercept_ca: { cert_path, key_path } } }
  const { id } = await mustCall(api, 'create_sandbox', { body: { image: 'registry.example/box:1', network } })
  await world.control.asOwner(`UPDATE sandboxes SET tls_key_sealed = '\\x01' WHERE id = $1`, [id])
  const started = await call(api, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
  assert.ok(!started.isRefusal)
  assert.match(started.body.last_failure_message ?? '', /the key of network\.tls\.intercept_ca can not be read/)
})

test('what can not be enforced is refused by its field, and a key is never repeated', async () => {
  const [authority, other] = await Promise.all(
    ['one', 'other'].map((name) => makeAuthority(name, { nowMs: Date.now() })),
  )
  assert.ok(authority && other)
  const expired = await makeAuthority('expired', { nowMs: 0 })
  const secrets = { entries: [{ env_var: 'KEY', value: 'v', allowed_hosts: [{ type: 'any' }] }] }
  const ca = (cert_path: string, key_path?: string) => ({ intercept_ca: { cert_path, key_path } })
  const refused: readonly (readonly [string, object, object?])[] = [
    ['tls.enabled', { intercepted_ports: [443] }],
    ['tls.enabled', { enabled: false }, { secrets }],
    ['tls.intercepted_ports', { intercepted_ports: [] }],
    ['tls.intercepted_ports', { intercepted_ports: [53] }],
    ['tls.intercepted_ports', { intercepted_ports: [70_000] }],
    ['tls.bypass[0]', { bypass: ['a*.example'] }],
    ['tls.scoped_verify_upstream[0].pattern', { scoped_verify_upstream: [{ pattern: '*', verify: true }] }],
    ['tls.upstream_ca_cert[0]', { upstream_ca_cert: ['/etc/ssl/ca.pem'] }],
    ['tls.upstream_ca_cert[0]', { upstream_ca_cert: [authority.key] }],
    ['tls.scoped_upstream_ca_cert[0].path', { scoped_upstream_ca_cert: [{ pattern: 'a.b', path: 'ca.pem' }] }],
    ['tls.intercept_ca', ca(authority.certificate)],
    ['tls.intercept_ca.cert_path', ca('/ca.pem', authority.key)],
    ['tls.intercept_ca.key_path', ca(authority.certificate, other.key)],
    ['tls.intercept_ca.key_path', ca(authority.certificate, '/key.pem')],
    ['tls.intercept_ca.cert_path', ca(expired.certificate, expired.key)],
    ['tls.cache.validity_hours', { cache: { validity_hours: 0 } }],
    ['tls.unknown', { unknown: 1 }],
  ]
  for (const [field, tls, beside] of refused) {
    const isOff = field === 'tls.enabled'
    const body = { image: 'x', network: { tls: { ...(isOff ? {} : { enabled: true }), ...tls }, ...beside } }
    const answer = await call(api, 'create_sandbox', { body })
    assert.ok(answer.isRefusal, field)
    const text = JSON.stringify(answer.body)
    assert.ok(text.includes(`network.${field}`), text)
    assert.ok(![authority, other].some(({ key }) => text.includes(key.slice(40, 60))), field)
  }
  for (const tls of [null, {}, { enabled: false }, { enabled: false, bypass: [] }]) {
    const made = await mustCall(api, 'create_sandbox', { body: { image: 'x', network: { tls } } })
    assert.equal(made.spec?.network.tls, undefined)
  }
})
