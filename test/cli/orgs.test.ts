import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { getQuotas } from '../../src/control/orgs/quotas.ts'
import { OPERATOR_ACTOR } from '../../src/domain/orgs/caller.ts'
import { LIMITS } from '../../src/domain/orgs/quota.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { makeProgram } from '../support/program.ts'
import { spawnProgram } from '../support/server.ts'

// Organizations, plans and limits through the `sandyard` program, on a database of its own.

let control: TestControl
const dataDir = mkdtempSync(join(tmpdir(), 'sandyard-cli-'))
before(async () => {
  control = await makeTestControl()
})
after(async () => {
  await control.close()
  rmSync(dataDir, { recursive: true, force: true })
})

async function sandyard(
  line: string,
  settings: Readonly<Record<string, string>> = {},
): Promise<{ readonly code: number | null; readonly out: string; readonly err: string }> {
  const child = spawnProgram(line.split(' '), {
    SANDYARD_DATA_DIR: dataDir,
    DATABASE_URL: control.databaseUrl,
    ...settings,
  })
  assert.ok(child.stdout !== null && child.stderr !== null)
  const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
  return { code: child.exitCode, out, err }
}

async function printed(line: string): Promise<string> {
  const { code, out, err } = await sandyard(line)
  assert.equal(code, 0, `${line}: ${err}`)
  return out
}

async function refused(line: string): Promise<string> {
  const { code, out, err } = await sandyard(line)
  assert.notEqual(code, 0, line)
  assert.equal(out, '', line)
  return err
}

function fileOf(name: string, json: unknown): string {
  const path = join(dataDir, name)
  writeFileSync(path, typeof json === 'string' ? json : JSON.stringify(json))
  return path
}

type EventRow = { readonly event_type: string; readonly actor: unknown; readonly payload: unknown }

async function eventsOf(slug: string): Promise<readonly EventRow[]> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<EventRow>({
      text: `SELECT e.event_type, e.actor, e.payload FROM events e JOIN orgs o ON o.id = e.org_id WHERE o.slug = $1 ORDER BY e.id`,
      values: [slug],
    }),
  )
  return rows
}

test('org create creates an organization with owner and default volume, and prints how to create a key', async () => {
  const said = await printed('org create Acme --owner Ann@acme.example --slug acme')
  assert.match(said, /sandyard key create --org acme/)
  assert.doesNotMatch(said, /sy_|msb_|[A-Za-z0-9]{32}/)
  assert.deepEqual(
    (await eventsOf('acme')).map(({ event_type }) => event_type),
    ['org_created', 'member_added', 'volume_created', 'org_plan_changed'],
  )
  assert.ok((await eventsOf('acme')).every(({ actor }) => JSON.stringify(actor) === JSON.stringify(OPERATOR_ACTOR)))
  assert.match(await printed('member list --org acme'), /ann@acme\.example\towner/)
  assert.match(await refused('org create Acme --owner ann@acme.example'), /'acme' belongs to another organization/)
  assert.match(await refused('org create Acme4 --owner a@b.example --plan gold'), /there is no plan 'gold'/)
  const { code, err } = await sandyard('org create Acme4 --owner a@b.example', { SANDYARD_DEFAULT_PLAN: 'gold' })
  assert.match(err, /SANDYARD_DEFAULT_PLAN is "gold", which is no plan; accepted: .*standard/)
  assert.equal(code, 2)
  assert.match(
    await printed('org list'),
    /^SLUG\tNAME\tPLAN\tOVERRIDES\tSUSPENDED\ndefault\tdefault\t.*\nacme\tAcme\tstandard\t0\t-\n/,
  )
})

test('org suspend and resume work, with the reason in the event', async () => {
  await printed('org create Sus --owner s@sus.example')
  await printed('org suspend sus --reason unpaid')
  const listed: unknown = JSON.parse(await printed('org list --json'))
  assert.ok(Array.isArray(listed))
  assert.ok(listed.some((org) => org.slug === 'sus' && org.suspended_at !== null))
  await printed('org resume sus')
  const told = (await eventsOf('sus')).slice(-2)
  assert.deepEqual(
    told.map(({ event_type, payload }) => ({ event_type, payload })),
    [
      { event_type: 'org_suspended', payload: { reason: 'unpaid' } },
      { event_type: 'org_resumed', payload: {} },
    ],
  )
  assert.match(await refused('org suspend nobody'), /there is no organization 'nobody'; there is/)
})

test('a server names a default plan that is no plan when it starts', async () => {
  const settings = { SANDYARD_DATA_DIR: dataDir, DATABASE_URL: control.databaseUrl, SANDYARD_DEFAULT_PLAN: 'gold' }
  const server = makeProgram(['serve', '--port', '0', '--ssh-port', 'off'], settings, /ready on/)
  try {
    await server.start()
    assert.match(
      server.output(),
      /SANDYARD_DEFAULT_PLAN is "gold", which is no plan; accepted: .*needs --plan until you make it/,
    )
  } finally {
    await server.stop()
  }
})

test('a plan is set from a file, shown in the same form, and assigned to organizations', async () => {
  const terms = { limits: { max_sandboxes: 3, included_vcpu_hours: null }, prices: { vcpu_hour_microcents: 4_000_000 } }
  await printed(`plan set team ${fileOf('team.json', terms)}`)
  assert.deepEqual(JSON.parse(await printed('plan show team')), terms)
  await printed('org create Teamed --owner t@t.example --plan team')
  assert.match(await printed('plan list'), /team\t1\tyes\tmax_sandboxes=3/)
  await printed(`plan set team ${fileOf('team.json', { limits: { max_sandboxes: 4 } })}`)
  const last = (await eventsOf('teamed')).at(-1)
  assert.equal(last?.event_type, 'plan_changed')
  assert.deepEqual(last.payload, { plan: 'team', limits: { max_sandboxes: 4 }, from: terms })
  await printed('org plan teamed unlimited')
  assert.equal((await eventsOf('teamed')).at(-1)?.event_type, 'org_plan_changed')
})

test('a plan with an unknown name or a wrong value is refused by its field, and nothing is set', async () => {
  const file = fileOf('bad.json', { limits: { max_sandboxes: '1' } })
  assert.match(await refused(`plan set bad ${file}`), /limits\.max_sandboxes is "1"/)
  assert.match(await refused(`plan set bad ${fileOf('none.json', '{')}`), /is not valid JSON/)
  assert.match(await refused('plan show bad'), /there is no plan 'bad'/)
})

test('quota set, show and clear change the limits in force of the organization that is named', async () => {
  const { deps, caller } = control
  assert.match(await refused('quota set max_sandboxes 2'), /name one by --org: .*default/)
  await printed('quota set max_sandboxes 2 --org default')
  await printed('quota set included_vcpu_hours unlimited --org default')
  assert.equal((await getQuotas(deps, caller)).max_sandboxes, 2)
  const shown = await printed('quota show --org default')
  assert.match(shown, /^max_sandboxes\t2\tsandboxes\t0\tits own$/m)
  assert.match(shown, /^included_vcpu_hours\tunlimited\thours\t0\.00\tits own$/m)
  assert.match(shown, /^max_vcpus_per_sandbox\tunlimited\tvcpus\t-\tplan unlimited$/m)
  const json: unknown = JSON.parse(await printed('quota show --json --org default'))
  assert.ok(typeof json === 'object' && json !== null && 'max_sandboxes' in json && json.max_sandboxes === 2)
  await printed('quota clear max_sandboxes --org default')
  assert.equal((await getQuotas(deps, caller)).max_sandboxes, null)
  assert.match(await refused('quota set max_sandboxes many --org default'), /a limit is a whole number.*'many'/)
  assert.match(
    await refused('quota set max_boxes 1 --org default'),
    /'max_boxes' is invalid for argument 'limit'. Allowed choices are max_sandboxes/,
  )
  assert.deepEqual((await eventsOf('default')).at(-1)?.payload, {
    overrides: { included_vcpu_hours: null },
    from: { max_sandboxes: 2, included_vcpu_hours: null },
  })
})

test('on a plan with prices, an included amount without a number is shown as 0, and can not be made unlimited', async () => {
  await printed('org create Billed --owner b@billed.example')
  const terms = { limits: { max_sandboxes: 3 }, prices: { vcpu_hour_microcents: 4_000_000 } }
  await printed(`plan set billed ${fileOf('billed.json', terms)}`)
  await printed('quota set included_vcpu_hours unlimited --org billed')
  assert.match(await printed('quota show --org billed'), /^included_vcpu_hours\tunlimited\thours\t0\.00\tits own$/m)
  await printed('org plan billed billed')
  const shown = await printed('quota show --org billed')
  assert.match(shown, /^included_vcpu_hours\t0\thours\t0\.00\tits own$/m)
  assert.match(shown, /^included_storage_gib\t0\tGiB\t-\tplan billed$/m)
  assert.match(shown, /^max_webhooks\tunlimited\t/m)
  assert.match(
    await refused('quota set included_vcpu_hours unlimited --org billed'),
    /included_vcpu_hours is "unlimited"; accepted: a whole number/,
  )
  assert.equal(await printed('quota set included_vcpu_hours 7 --org billed'), 'included_vcpu_hours is 7\n')
})

test('the help of these commands shows their arguments and every limit', async () => {
  const [orgs, plans, quotas] = [
    await printed('org --help'),
    await printed('plan --help'),
    await printed('quota --help'),
  ]
  assert.match(orgs, /suspend .*<slug>/)
  for (const name of Object.keys(LIMITS)) assert.ok(plans.includes(name) && quotas.includes(name), name)
  assert.match(plans, /vcpu_hour_microcents/)
})

test('org allow opens a range for an organization, org disallow closes it, and org show lists it', async () => {
  await printed('org create Open --owner o@open.example --slug open')
  assert.equal(await printed('org allow open'), '')
  assert.equal(await printed('org allow open metadata'), 'metadata\n')
  assert.equal(await printed('org allow open 10.1.0.0/16'), 'metadata\n10.1.0.0/16\n')
  const shown = JSON.parse(await printed('org show open')) as {
    readonly network_allow: unknown
    readonly plan: unknown
  }
  assert.deepEqual([shown.network_allow, shown.plan], [['metadata', '10.1.0.0/16'], 'standard'])
  assert.match(await printed('org disallow open metadata'), /^metadata is closed/)
  assert.match(await refused('org disallow open metadata'), /range is "metadata"; accepted: 10\.1\.0\.0\/16/)
  assert.match(await refused('org allow open host'), /range is "host"; accepted: an address or CIDR block/)
  const events = (await eventsOf('open')).filter(({ event_type }) => event_type.startsWith('network_range'))
  assert.deepEqual(
    events.map(({ event_type, payload }) => [event_type, payload]),
    [
      ['network_range_allowed', { range: 'metadata' }],
      ['network_range_allowed', { range: '10.1.0.0/16' }],
      ['network_range_disallowed', { range: 'metadata' }],
    ],
  )
})

test('org replace-ca ends the use of the certificate authority, and the organization sees that in its events', async () => {
  await printed('org create Trust --owner o@trust.example --slug trust')
  assert.match(await printed('org replace-ca trust'), /^trust gets a new certificate authority/)
  const events = await eventsOf('trust')
  assert.ok(events.some(({ event_type }) => event_type === 'intercept_authority_replaced'))
})
