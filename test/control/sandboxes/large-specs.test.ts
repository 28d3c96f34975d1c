import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeAdmitInBatch } from '../../../src/control/sandboxes/placement/admit-in-batch.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { modifySandbox, planModification } from '../../../src/control/sandboxes/modify-sandbox.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { createSnapshot } from '../../../src/control/snapshots/create-snapshot.ts'
import { forkSandbox } from '../../../src/control/snapshots/fork-sandbox.ts'
import { normalizeSecretsPatch, type NormalizedPatch } from '../../../src/domain/spec/normalize-secret-patch.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import {
  getSandbox,
  getSummary,
  listSandboxes,
  makeSandboxReader,
} from '../../../src/control/sandboxes/read-sandboxes.ts'
import { parseSpec } from '../../../src/control/sandboxes/parse-spec.ts'
import { renderSpec } from '../../../src/control/sandboxes/render-spec.ts'
import { waitForSandbox } from '../../../src/control/sandboxes/waits/wait-for-sandbox.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { makeControlDeps, type ControlDeps } from '../../../src/control/make-deps.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { etagOf } from '../../../src/domain/requests/etag.ts'
import { renderSandbox, type Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { projectSpec } from '../../../src/domain/spec/project-spec.ts'
import type { SandboxSpec } from '../../../src/domain/spec/spec.ts'
import { LARGE_TEXT } from '../../../src/lib/turns/next-turn.ts'
import type { Database } from '../../../src/store/postgres/database.ts'
import { showPorts } from '../../../src/store/sandboxes/sandboxes.ts'
import { pending } from '../../../src/store/workers/capacity.ts'
import { makeTestControl } from '../../support/control.ts'
import { countTurns } from '../../support/count-turns.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { watchStatements } from '../../support/watch-statements.ts'

function largeSpec(name: string): SandboxSpec {
  return { ...PLAIN_SPEC, env: [{ key: name, value: name.repeat(LARGE_TEXT) }] }
}

function create(deps: ControlDeps, caller: Caller, spec: SandboxSpec, start = false): Promise<Sandbox> {
  const input = { name: null, slug: null, registry: { mode: 'auto' }, start, waitMs: null, signal: null } as const
  return createSandbox(deps, caller, { ...input, spec })
}

const PORT = { host_bind: '127.0.0.1', host_port: 8080, guest_port: 80, protocol: 'tcp' } as const

/** Many variables, of which V8 would render all in one turn. */
const longSpec: SandboxSpec = {
  ...PLAIN_SPEC,
  env: Array.from({ length: 2_500 }, (_, n) => ({ key: `K${String(n)}`, value: `ä"${String(n)}` })),
}

test('each large member of a specification is rendered, and each large text encoded, in a turn of the event loop of its own', async () => {
  const labels = { label: 'v'.repeat(LARGE_TEXT) }
  assert.equal(await countTurns(() => renderSpec(largeSpec('A'))), 1 + 2)
  assert.equal(await countTurns(() => renderSpec({ ...largeSpec('A'), labels })), 2 + 2)
  assert.equal(await countTurns(() => renderSpec(longSpec)), 3 + 1 + 2) // a thousand variables at a time
  assert.equal(await countTurns(() => renderSpec(PLAIN_SPEC)), 0) // at once
})

test('a stored specification that is large is parsed in several turns, and is what it was', async () => {
  const quotes = { ...PLAIN_SPEC, env: [{ key: 'QUOTES', value: '"'.repeat(400_000) }] } // 800,000 characters
  for (const [spec, turns] of [
    [PLAIN_SPEC, 0],
    [quotes, 7],
    [longSpec, 2],
  ] as const) {
    let parsed: unknown
    const text = JSON.stringify(spec)
    assert.ok((await countTurns(async () => void (parsed = await parseSpec(text)))) >= turns)
    assert.deepEqual(parsed, spec)
  }
})

test('the texts of a specification are those of the specification and of its projection', async () => {
  const text = '"𝄞\n\ud800🙂'.repeat(200_000) // with lone surrogates, and pairs at the ends of its pieces
  const file = { type: 'text', path: '/a', content: text, mode: null, replace: false } as const
  const patches = [{ type: 'mkdir', path: '/b', mode: null }, file, { type: 'remove', path: '/c' }] as const
  const scripts = { 'a"b': text, short: 'echo', ['x'.repeat(9)]: `y${text}` }
  const env = [...longSpec.env, { key: 'LONG', value: `z${text}` }]
  const longTexts = { ...longSpec, patches, env, runtime: { ...PLAIN_SPEC.runtime, scripts } }
  for (const spec of [PLAIN_SPEC, largeSpec('"quoted"'), largeSpec('𝄞🙂'), longSpec, longTexts]) {
    const { spec_json, projection_json, encoded } = await renderSpec(spec)
    assert.ok(spec_json === JSON.stringify(spec)) // `equal` would print them
    assert.ok(projection_json === JSON.stringify(projectSpec(spec)))
    const isLarge = spec !== PLAIN_SPEC
    const texts = encoded && [encoded.spec, encoded.projection].map((pieces) => Buffer.concat(pieces).toString())
    assert.deepEqual(texts, isLarge ? [spec_json, projection_json] : null)
  }
})

test('of large specifications that arrive together, each is sent to the database by itself', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { db } = control.deps
  const sizes: number[] = []
  const counted: Database = {
    ...db,
    commitStatement(scope, statement) {
      sizes.push((statement.values ?? []).reduce((sum: number, value) => sum + (Buffer.isBuffer(value) ? value.length : 0), 0)) // prettier-ignore
      return db.commitStatement(scope, statement)
    },
  }
  const deps = { ...control.deps, admitInBatch: makeAdmitInBatch({ ...control.deps, db: counted }) }
  const made = await Promise.all(['A', 'B', 'C', 'D'].map((name) => create(deps, control.caller, largeSpec(name))))
  assert.deepEqual(made.map(({ status }) => status), Array<string>(4).fill('created')) // prettier-ignore
  // The specification itself, and its projection for replies.
  assert.ok(Math.max(...sizes) < 3 * LARGE_TEXT, sizes.join(', '))
})

test('large specifications are read one by one, and only if the reply would be read', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const small = await create(deps, caller, PLAIN_SPEC)
  const large = await create(deps, caller, largeSpec('A'))
  let asked = 0
  const read = ({ id }: typeof small) => getSandbox(deps, caller, { id }, () => void (asked += 1))
  assert.deepEqual(await Promise.all([large, small, large].map(read)), [large, small, large])
  assert.equal(asked, 2)
  const { spec_json: _, ...rest } = large
  const summary = { ...rest, spec_bytes: Buffer.byteLength(JSON.stringify(largeSpec('A'))) }
  assert.deepEqual(await getSummary(deps, caller, { id: large.id }), summary)
  assert.deepEqual(await getSummary(deps, caller, { name: large.name }), summary)
  const nobodyReads = new Error('nobody reads it')
  const refuse = (): never => {
    throw nobodyReads
  }
  await assert.rejects(getSandbox(deps, caller, { id: large.id }, refuse), nobodyReads)
  assert.deepEqual(await getSandbox(deps, caller, { id: small.id }, refuse), small)
  const page = { cursor: null, limit: 10, labels: {}, beforeRead: refuse }
  await assert.rejects(listSandboxes(deps, caller, page), nobodyReads)
})

test('a wait reads a large specification at its end, if the reply would be read, and not if the client has left', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { caller } = control
  const large = await create(control.deps, caller, largeSpec('A'))
  const { db, counted } = countingDatabase(control.deps.db)
  const deps = makeControlDeps({ ...control.deps, db })
  const nobodyReads = new Error('nobody reads it')
  const refuse = (): void => {
    throw nobodyReads
  }
  const wait = async (
    status: 'created' | 'running',
    { waitMs = 20_000, beforeLarge = refuse, leaves = false } = {},
  ) => {
    const { start } = await waitForSandbox(deps, caller, { id: large.id }, { statuses: [status], run_id: null, waitMs })
    const { promise, resolve } = Promise.withResolvers<Sandbox | Error>()
    const leave = start(resolve, beforeLarge)
    if (leaves) leave()
    return promise
  }
  assert.equal(await wait('created'), nobodyReads)
  assert.equal(await wait('running', { waitMs: 0 }), nobodyReads)
  assert.equal(await wait('running', { leaves: true }), nobodyReads)
  assert.ok(counted() < LARGE_TEXT, String(counted()))
  assert.deepEqual(await wait('created', { beforeLarge: () => undefined }), large)
})

test('whoever checks, changes or copies a large specification is asked for its bytes before, and a refusal changes nothing', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { id } = await create(deps, caller, largeSpec('A'))
  const bytes = Buffer.byteLength(JSON.stringify(largeSpec('A')))
  const asked: number[] = []
  const beforeSpec = (specBytes: number): never => {
    asked.push(specBytes)
    throw new Error('refused')
  }
  const conditions = { ifMatch: ['"x"'], beforeSpec } as const
  const patch = { ...patchOf({ secrets_remove: ['NONE'] }), beforeSpec }
  const fork = { sandbox_id: id, name: null, signal: new AbortController().signal, beforeSpec }
  for (const work of [
    () => startSandbox(deps, caller, { id }, { waitMs: null, signal: null, ...conditions }),
    () => stopSandbox(deps, caller, { id }, conditions),
    () => renameSandbox(deps, caller, { id }, { name: 'other', ...conditions }),
    () => deleteSandbox(deps, caller, { id }, conditions),
    () => planModification(deps, caller, { id }, patch),
    () => modifySandbox(deps, caller, { id }, patch),
    () => forkSandbox(deps, caller, { ...fork, count: 3 }),
  ])
    await assert.rejects(work, { message: 'refused' })
  assert.deepEqual(asked, [bytes, bytes, bytes, bytes, bytes, 3 * bytes, 3 * bytes])
  assert.deepEqual((await getSummary(deps, caller, { id })).status, 'created')
  await assert.rejects(forkSandbox(deps, caller, { ...fork, count: 500 }), /accepted: at most 253 copies/)
})

/** A database, and how many characters of rows and values its statements have had. */
function countingDatabase(db: Database): { readonly db: Database; readonly counted: () => number } {
  let sum = 0
  const counting = watchStatements(db, ({ values }, rows) => {
    sum += JSON.stringify([values, rows]).length
  })
  return { db: counting, counted: () => sum }
}

function patchOf(input: Parameters<typeof normalizeSecretsPatch>[0]): NormalizedPatch {
  const result = normalizeSecretsPatch(input)
  if ('refusal' in result) throw new Error(result.refusal.accepted)
  return result
}

test('a change of secrets reads and sends nothing of a large specification but its network, and the rest stays as it was written', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { caller } = control
  const deps: ControlDeps = { ...control.deps, workerAbilities: () => Promise.resolve([['scripts', 'secrets']]) }
  const labels = { 'z"z': 'ä\n', a: '1', ['b'.repeat(9)]: '2' } // PostgreSQL's `jsonb` would sort them
  const runtime = { ...PLAIN_SPEC.runtime, scripts: { second: '\u2028', first: 'exit 1' } }
  const spec = { ...largeSpec('"A𝄞'), labels, runtime }
  const { id } = await create(deps, caller, spec)
  const { db, counted } = countingDatabase(deps.db)
  const secret = { name: 'KEY', value: 'one', allowed_hosts: [{ type: 'any' }] } as const
  const ofEnv = patchOf({ secrets: [{ ...secret, name: spec.env[0]?.key ?? '' }] })
  const planned = await planModification({ ...deps, db }, caller, { id }, ofEnv)
  assert.match(planned.conflicts[0]?.message ?? '', /^env sets/)
  const added = await modifySandbox({ ...deps, db }, caller, { id }, patchOf({ secrets: [secret] }))
  assert.ok(added.changes.length === 1 && counted() < LARGE_TEXT, String(counted()))

  const read = `SELECT spec::text AS spec, spec -> 'network' AS network, spec_projection::text AS projection,
    spec_bytes - octet_length(spec::text) AS more, projection_bytes - octet_length(spec_projection::text) AS more_shown
    FROM sandboxes WHERE id = $1`
  type Row = { readonly spec: string; readonly network: SandboxSpec['network']; readonly projection: string }
  const { rows } = await deps.db.asSystem((q) => q.query<Row>({ text: read, values: [id] }))
  const [{ network, ...texts } = { network: spec.network }] = rows
  assert.deepEqual(network.secrets.map(({ env_var }) => env_var), ['KEY']) // prettier-ignore
  const changed = { ...spec, network }
  const [stored, shown] = [JSON.stringify(changed), JSON.stringify(projectSpec(changed))]
  assert.deepEqual(texts, { spec: stored, projection: shown, more: 0, more_shown: 0 })
})

test('a change of secrets keeps the ports that a worker has picked, and a specification that becomes large gets its parts', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { id } = await create(deps, caller, PLAIN_SPEC)
  const network = { ...PLAIN_SPEC.network, ports: [PORT] }
  const given = `UPDATE sandboxes SET spec = $2, spec_projection = $3, abilities = '{published_ports}' WHERE id = $1`
  const values = [id, { ...PLAIN_SPEC, network }, projectSpec({ ...PLAIN_SPEC, network })]
  await deps.db.asSystem((q) => q.query({ text: given, values }))
  await deps.db.asSystem((q) => showPorts(q, id, [40_001]))
  const patch = patchOf({ secrets: [{ name: 'KEY', value: 'one', allowed_hosts: [{ type: 'any' }] }] })
  const withAbilities = (...abilities: string[]): ControlDeps => ({ ...deps, workerAbilities: () => Promise.resolve([abilities]) }) // prettier-ignore
  const refused = modifySandbox(withAbilities('secrets'), caller, { id }, patch)
  await assert.rejects(refused, /sandbox needs a worker that is capable of published_ports/)
  await modifySandbox(withAbilities('secrets', 'published_ports'), caller, { id }, patch)
  const shown = JSON.parse((await getSandbox(deps, caller, { id })).spec_json)
  assert.deepEqual(shown.network.ports, [{ ...PORT, host_port: 40_001 }])
  const text = 'SELECT spec_parts FROM sandboxes WHERE id = $1'
  const { rows } = await deps.db.asSystem((q) => q.query({ text, values: [id] }))
  assert.deepEqual(rows, [{ spec_parts: { image: PLAIN_SPEC.image, mounts: [], network: { ports: [PORT] } } }])
})

test('the first secret of a sandbox is refused if no worker can have it that also has the isolation that the operator demands', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { id } = await create(deps, caller, PLAIN_SPEC)
  const patch = patchOf({ secrets: [{ name: 'KEY', value: 'one', allowed_hosts: [{ type: 'any' }] }] })
  const settings = { ...deps.settings, requireIsolation: 'microvm' } as const // demanded after the sandbox was created
  const withWorkers = (...lists: string[][]): ControlDeps => ({ ...deps, settings, workerAbilities: () => Promise.resolve(lists) }) // prettier-ignore
  await assert.rejects(
    modifySandbox(withWorkers(['secrets'], ['isolation_microvm']), caller, { id }, patch),
    /no single worker/,
  )
  const both = await modifySandbox(withWorkers(['secrets', 'isolation_microvm']), caller, { id }, patch)
  assert.equal(both.applied, true)
})

test('a snapshot reads the image of a large specification, not all of it', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { id } = await create(deps, caller, largeSpec('A'))
  const home_worker_id = await registerWorker(deps, { name: 'with-the-disk', credential: 'credential-of-a-worker' })
  const text = 'UPDATE sandboxes SET home_worker_id = $2 WHERE id = $1'
  await deps.db.asSystem((q) => q.query({ text, values: [id, home_worker_id] }))
  const { db, counted } = countingDatabase(deps.db)
  const how = { name: 'one', labels: {}, replaces: false, records_integrity: false }
  const { image } = await createSnapshot({ ...deps, db }, caller, { ...how, sandbox_id: id })
  assert.ok(image === PLAIN_SPEC.image && counted() < LARGE_TEXT, String(counted()))
})

test('a placement reads the parts of a large specification that it needs, not all of it', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { parts_json } = await renderSpec({ ...largeSpec('A'), network: { ...PLAIN_SPEC.network, ports: [PORT] } })
  assert.deepEqual(JSON.parse(parts_json ?? ''), {
    image: PLAIN_SPEC.image,
    mounts: PLAIN_SPEC.mounts,
    network: { ports: [PORT] },
  })
  const { id } = await create(deps, caller, largeSpec('A'), true)
  await create(deps, caller, PLAIN_SPEC, true)
  const text = 'UPDATE sandboxes SET spec = $2 WHERE id = $1'
  await deps.db.asSystem((q) => q.query({ text, values: [id, { image: 'not read' }] }))
  const runs = await deps.db.asSystem((q) => pending(q, { after: null, limit: 10, waitingUpTo: null }))
  assert.deepEqual(
    runs.map(({ image, ports }) => ({ image, ports })),
    Array(2).fill({ image: PLAIN_SPEC.image, ports: null }),
  )
})

test('a sandbox with a large specification is read in a state that it had, although it is read twice', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps, caller } = control
  const { id } = await create(deps, caller, largeSpec('A'))
  let isFound = false
  const asOrg: Database['asOrg'] = async (org, use) => {
    if (isFound) {
      await renameSandbox(deps, caller, { id }, { name: 'renamed-first' })
      const text = `UPDATE sandboxes SET spec_projection = $2 WHERE id = $1` // as a change of secrets and a start do
      await deps.db.asSystem((q) => q.query({ text, values: [id, projectSpec(largeSpec('B'))] }))
    }
    isFound = true
    return deps.db.asOrg(org, use)
  }
  const reader = makeSandboxReader({ ...deps, db: { ...deps.db, asOrg } })
  const read = await getSandbox(reader, caller, { id })
  assert.ok(etagOf(renderSandbox(read)) === etagOf(renderSandbox(await getSandbox(deps, caller, { id }))))
  assert.equal(read.name, 'renamed-first')
})
