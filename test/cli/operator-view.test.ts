import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import type { OrgId, SandboxId } from '../../src/domain/ids.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import { makeOperatorWorld, type OperatorWorld } from '../support/operator-world.ts'
import { waitUntil } from '../support/wait.ts'

// `sandyard ps`, `inspect` and `events` over all organizations, on a database whose sandboxes this file moves itself.

let world: OperatorWorld
let acme: OrgId
let running: SandboxId
let waiting: SandboxId
before(async () => {
  world = await makeOperatorWorld()
  acme = await world.addOrg('acme')
  const worker = await world.addWorker('w-1', 4)
  const env = [{ key: 'TOKEN', value: 'hunter2-is-secret' }]
  running = await world.create({ name: 'web', spec: { env, labels: { team: 'red' } } })
  await world.move(running, { event: 'placed', worker: { id: worker, name: 'w-1' } })
  await world.move(running, { event: 'worker_running' })
  waiting = await world.create({ name: 'batch', org: acme })
  await world.move(waiting, { event: 'no_capacity' })
  await world.create({ name: 'idle', org: acme, start: false })
  await world.create({ name: 'web', org: acme, start: false })
  await world.create({ name: 'right\u202eleft', start: false })
})
after(() => world.close())

test('ps lists what runs and waits in all organizations with reason and worker, and --all, --status, --worker and --org choose', async () => {
  const listed = await world.print('ps')
  assert.match(listed, /^ORG\tNAME\tSLUG\tIMAGE\tSTATUS\tWORKER\tSTARTED\tVCPUS\tMEMORY\n/)
  assert.match(
    listed,
    /acme\tbatch\t\S+\tregistry\.example\/box:1\tstarting \(insufficient capacity\)\t-\t-\t1\t256 MiB\n/,
  )
  assert.match(listed, /default\tweb\t\S+\tregistry\.example\/box:1\trunning\tw-1\t\d+s ago\t1\t256 MiB\n/)
  assert.equal(listed.trimEnd().split('\n').length, 3)
  const names = async (...args: readonly string[]) => {
    const lines = (await world.print('ps', '--json', ...args)).trimEnd().split('\n')
    return lines.map((line) => String(JSON.parse(line).name)).toSorted()
  }
  assert.deepEqual(await names('--all', '--org', 'acme'), ['batch', 'idle', 'web'])
  assert.deepEqual(await names('--status', 'created', '--org', 'acme'), ['idle', 'web'])
  assert.deepEqual(await names('--worker', 'w-1'), ['web'])
  assert.deepEqual(await names('--all', '--limit', '2'), ['right\u202eleft', 'web'])
  assert.match(await world.print('ps', '--all'), /right\\u\{202e\}left/)
  assert.match(await world.refuse('ps', '--status', 'asleep'), /Allowed choices are created, starting/)
  assert.match(await world.refuse('ps', '--worker', 'w-9'), /there is no worker 'w-9'/)
})

test('ps of several pages is complete', async () => {
  const org = await world.addOrg('crowd')
  for (let left = 150; left > 0; left -= 50)
    await Promise.all(
      Array.from({ length: 50 }, (_, index) => world.create({ name: `n-${String(left - index)}`, org, start: false })),
    )
  const lines = (await world.print('ps', '--all', '--org', 'crowd', '--json')).trimEnd().split('\n')
  assert.equal(new Set(lines.map((line) => String(JSON.parse(line).name))).size, 150)
})

test('inspect shows a sandbox by name, slug, id or the beginning of its id, and never the values of its environment', async () => {
  const document = JSON.parse(await world.print('inspect', running, '--json'))
  assert.equal(document.org, 'default')
  assert.deepEqual(document.spec.env, [{ key: 'TOKEN', value: '***' }])
  assert.equal(document.runs[0].worker, 'w-1')
  for (const given of [document.slug, running.slice(0, 30)]) {
    const shown = await world.print('inspect', given)
    assert.match(shown, /name +web\n/)
    assert.match(shown, /TOKEN +\*\*\*\n/)
    assert.match(shown, /team +red\n/)
    assert.match(shown, /on w-1, ran \d+s, open\n/)
    assert.ok(!shown.includes('hunter2'))
  }
  assert.match(await world.print('inspect', 'web', '--org', 'acme'), /organization +acme\n/)
})

test('a name of several organizations is refused with the candidates, and an unknown one with similar names', async () => {
  const refusal = await world.refuse('inspect', 'web')
  assert.match(refusal, /'web' names several sandboxes; name the organization by --org/)
  assert.match(refusal, new RegExp(`${running} {2}\\S+ {2}'web' of the organization 'default'`))
  assert.match(refusal, /of the organization 'acme'/)
  assert.match(await world.refuse('inspect', 'bacth'), /there is no sandbox 'bacth'; did you mean batch\?/)
  assert.match(await world.refuse('inspect', 'nothing-like-it-at-all'), /`sandyard ps --all` lists all/)
  assert.match(await world.refuse('inspect', 'web', '--org', 'nobody'), /no organization 'nobody'/)
})

test('events shows what happened in all organizations, the oldest first, by sandbox, organization, category and actor', async () => {
  const all = await world.print('events', '--since', '90m', '--limit', '10000')
  assert.match(all, /^TIME\tORG\tEVENT\tACTOR\tFACTS\n/)
  assert.match(all, /\tacme\torg_created\tthe sandyard command\tname=acme slug=acme\n/)
  assert.match(all, /\tacme\tsandbox_waiting\tSandyard\tname=batch cause=placement/)
  const types = async (...args: readonly string[]) => {
    const lines = (await world.print('events', '--json', ...args)).trimEnd().split('\n')
    return lines.map((line) => String(JSON.parse(line).event_type))
  }
  assert.deepEqual(await types('--sandbox', 'batch'), ['sandbox_created', 'sandbox_starting', 'sandbox_waiting'])
  assert.deepEqual(await types('--sandbox', running, '--limit', '2'), ['sandbox_placed', 'sandbox_running'])
  assert.ok((await types('--category', 'org')).every((type) => type.startsWith('org_')))
  assert.ok((await types('--actor', 'operator', '--org', 'acme')).includes('org_created'))
  assert.match(await world.refuse('events', '--since', 'yesterday'), /--since takes an instant/)
})

test('why says where a sandbox stands, since when, by whom, what each worker lacks and what would help', async () => {
  const big = await world.create({
    name: 'big',
    spec: { resources: { vcpus: 8, memory_mib: 100, disk_size_mib: null } },
  })
  await world.move(big, { event: 'no_capacity' })
  const waits = await world.print('why', 'big')
  assert.match(
    waits,
    /^The sandbox 'big' \(\S+\) of the organization 'default', .* waits for a worker with enough capacity\./,
  )
  assert.match(waits, /since 20\S+ \(\d+s ago\), by Sandyard\n/)
  assert.match(waits, /Workers:\n {2}w-1: it needs 8 vCPUs, and 3 are free\n/)
  assert.match(waits, /no server runs on this database, so nothing is placed\n/)
  assert.match(waits, /What would help:\n {2}start the server/)

  const failing = await world.create({ name: 'failing' })
  const worker = await world.addWorker('w-2', 1)
  await world.move(failing, { event: 'placed', worker: { id: worker, name: 'w-2' } })
  const outcome = { kind: 'start_failed', reason: 'registry', message: 'no such registry' } as const
  await world.move(failing, {
    event: 'worker_start_failed',
    outcome,
    cause: { actor: SYSTEM_ACTOR, code: 'worker_report', message: outcome.message },
  })
  const failed = JSON.parse(await world.print('why', 'failing', '--json'))
  assert.equal(failed.state, 'failed')
  assert.equal(failed.reasons[0], 'no such registry')
  assert.ok(failed.advice.includes('check the credentials: sandyard registry list --org default'))
  assert.equal(failed.runs[0].outcome.reason, 'registry')
  assert.match(await world.print('why', running), /is running on the worker 'w-1'/)
})

test('events --follow goes on with new events until interrupted, and closed pipes end commands quietly', async () => {
  const followed = world.spawn('events', '--org', 'acme', '--limit', '1', '--follow')
  let said = ''
  followed.stdout?.setEncoding('utf8').on('data', (text: string) => {
    said += text
  })
  await waitUntil(() => said.split('\n').length > 2, 30_000)
  await world.create({ name: 'followed', org: acme, start: false })
  await waitUntil(() => said.includes('\tsandbox_created\t') && said.includes('name=followed'), 30_000)
  followed.kill('SIGINT')
  await once(followed, 'exit')
  assert.equal(followed.exitCode, 130)
  assert.equal(said.match(/name=followed/g)?.length, 1)

  const closed = world.spawn('events', '--follow')
  closed.stdout?.once('data', () => closed.stdout?.destroy())
  let complained = ''
  closed.stderr?.setEncoding('utf8').on('data', (text: string) => {
    complained += text
  })
  const ended = once(closed, 'exit')
  await waitUntil(() => closed.stdout?.destroyed === true, 30_000)
  await world.create({ name: 'unread', org: acme, start: false })
  await ended
  assert.deepEqual([closed.exitCode, complained], [0, ''])
})
