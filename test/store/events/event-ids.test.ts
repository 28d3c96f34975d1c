import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { makeControlDeps, type ControlDeps } from '../../../src/control/make-deps.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { createVolume } from '../../../src/control/volumes/create-volume.ts'
import { deleteVolume } from '../../../src/control/volumes/delete-volume.ts'
import { updateVolume } from '../../../src/control/volumes/update-volume.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeUuids } from '../../../src/lib/uuid.ts'
import * as events from '../../../src/store/events/events.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

let control: TestControl
let behind: ControlDeps
before(async () => {
  control = await makeTestControl()
  const clock = { ...systemClock, now: () => new Date(systemClock.now().getTime() - 4_000) }
  behind = makeControlDeps({ ...control.deps, clock, uuids: makeUuids(clock, systemRandom) })
})
after(() => control.close())

async function listed(sandbox_id: string | null): Promise<readonly string[]> {
  const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
  const { items } = await listEvents(control.deps, control.caller, { ...input, sandbox_id })
  return items.map(({ event_type }) => event_type).reverse()
}

test('events of a sandbox are in the order in which they happened, whatever the clocks of the processes say', async () => {
  const { deps, caller } = control
  const how = { name: null, slug: null, registry: { mode: 'auto' }, start: false, waitMs: null, signal: null } as const
  const { id } = await createSandbox(deps, caller, { spec: PLAIN_SPEC, ...how })
  const expected = ['sandbox_created']
  for (let n = 0; n < 3; n++) {
    await startSandbox(behind, caller, { id }, { waitMs: null, signal: null })
    await stopSandbox(deps, caller, { id })
    await renameSandbox(behind, caller, { id }, { name: `changed-${String(n)}` })
    await startSandbox(deps, caller, { id }, { waitMs: null, signal: null })
    await stopSandbox(behind, caller, { id })
    expected.push('sandbox_starting', 'sandbox_stopped', 'sandbox_renamed', 'sandbox_starting', 'sandbox_stopped')
  }
  await startSandbox(deps, caller, { id }, { waitMs: null, signal: null })
  await deleteSandbox(behind, caller, { id })
  assert.deepEqual(await listed(id), [...expected, 'sandbox_starting', 'sandbox_stopped', 'sandbox_deleted'])
})

test('events of a volume are in the order in which they happened, whatever the clocks of the processes say', async () => {
  const { deps, caller } = control
  const { id } = await createVolume(deps, caller, { name: 'data', labels: {}, capacity_gib: null })
  await updateVolume(behind, caller, id, { labels: { team: 'a' } })
  await updateVolume(deps, caller, id, { labels: {} })
  await deleteVolume(behind, caller, id)
  const [ofDefaultVolume, ...ofVolume] = (await listed(null)).filter((type) => type.startsWith('volume_'))
  assert.equal(ofDefaultVolume, 'volume_created')
  assert.deepEqual(ofVolume, ['volume_created', 'volume_updated', 'volume_updated', 'volume_deletion_scheduled'])
})

test('the id of an event is the next one if an earlier event has a higher one, and else the one that was asked for', async () => {
  const { deps, caller } = control
  const { org_id } = caller
  const insert = async (id: string, sandbox: SandboxId): Promise<string | undefined> => {
    const payload = { sandbox_id: sandbox, name: 'a', slug: 'a' }
    const event = {
      event_type: 'sandbox_deleted',
      org_id,
      actor: SYSTEM_ACTOR,
      timestamp: new Date(),
      payload,
    } as const
    const ids = await deps.db.asOrg(org_id, (q) => events.insertMany(q, [{ ...event, id, sandbox_id: sandbox }]))
    return ids[0]
  }
  const one = asId<SandboxId>(deps.uuids.next())
  assert.equal(await insert('01900000-0001-7ffe-8111-111111111111', one), '01900000-0001-7ffe-8111-111111111111')
  assert.equal(await insert('01900000-0001-7000-9222-222222222222', one), '01900000-0001-7fff-9222-222222222222')
  assert.equal(await insert('01900000-0000-7abc-a333-333333333333', one), '01900000-0002-7000-a333-333333333333')
  assert.equal(await insert('01900000-0002-7001-b444-444444444444', one), '01900000-0002-7001-b444-444444444444')
  const other = asId<SandboxId>(deps.uuids.next())
  assert.equal(await insert('01900000-0000-7000-8555-555555555555', other), '01900000-0000-7000-8555-555555555555')
})
