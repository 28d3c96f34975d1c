import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import {
  addMember,
  changeMemberRole,
  listMembers,
  removeMember,
  type Member,
} from '../../../src/control/orgs/members.ts'
import { listEvents, type EventRow } from '../../../src/control/events/read-events.ts'
import { OPERATOR_ACTOR, type Caller, type OrgActor, type Role } from '../../../src/domain/orgs/caller.ts'
import { parseEmail } from '../../../src/domain/orgs/email.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

function add(who: Caller, email: string, role: Role = 'member', display_name: string | null = null): Promise<unknown> {
  return addMember(control.deps, who, { email, role, display_name })
}

/** The operator, acting in an organization: a key may not change owners. */
const asOperator = ({ org_id }: Caller): OrgActor => ({ org_id, actor: OPERATOR_ACTOR })

async function membersOf(who: Caller): Promise<readonly Member[]> {
  return (await listMembers(control.deps, who, { cursor: null, limit: 100 })).items
}

async function eventsOf(who: Caller): Promise<readonly EventRow[]> {
  const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
  return (await listEvents(control.deps, who, input)).items.toReversed()
}

test('members are listed in pages, newest first, with e-mail and name', async () => {
  const org = await addOrg(control.deps, 'paged')
  for (const n of [1, 2, 3, 4, 5]) await add(org, `p${String(n)}@example.org`, 'viewer', `P ${String(n)}`)
  const seen: string[] = []
  for (let cursor: string | null = null; ;) {
    const page = await listMembers(control.deps, org, { cursor, limit: 2 })
    assert.ok(page.items.length <= 2)
    seen.push(...page.items.map(({ display_name, email }) => `${String(display_name)} ${email}`))
    cursor = page.nextCursor
    if (cursor === null) break
    await add(org, `later${String(seen.length)}@example.org`)
  }
  assert.deepEqual(seen, [5, 4, 3, 2, 1].map((n) => `P ${String(n)} p${String(n)}@example.org`)) // prettier-ignore
})

test('an e-mail address in any case is one person in all organizations, and at most one member of each', async () => {
  const [one, two] = [await addOrg(control.deps, 'one'), await addOrg(control.deps, 'two')]
  await add(one, 'Ada@Example.org', 'admin', 'Ada')
  await add(two, 'ada@example.org')
  const [[inOne], [inTwo]] = [await membersOf(one), await membersOf(two)]
  assert.ok(inOne !== undefined && inTwo !== undefined)
  assert.equal(inOne.user_id, inTwo.user_id)
  assert.deepEqual([inTwo.email, inTwo.display_name, inTwo.role, inOne.role], ['ada@example.org', 'Ada', 'member', 'admin']) // prettier-ignore
  await assert.rejects(add(two, 'ADA@example.org'), { code: 'member_already_exists' })
  await removeMember(control.deps, asOperator(two), { email: 'Ada@example.org' })
  assert.deepEqual(await membersOf(two), [])
  assert.equal((await membersOf(one)).length, 1)
})

test('a query without a filter shows only people of its own organization, and can change none', async () => {
  const own = await addOrg(control.deps, 'people')
  await add(own, 'mine@example.org')
  const emails = await control.deps.db.asOrg(own.org_id, (q) =>
    q.query<{ readonly email: string }>({ text: 'SELECT email FROM users' }),
  )
  assert.deepEqual(
    emails.rows.map(({ email }) => email),
    ['mine@example.org'],
  )
  const changed = await control.deps.db.asOrg(own.org_id, (q) => q.query({ text: `UPDATE users SET email = 'x'` }))
  assert.equal(changed.rowCount, 0)
})

test('the last owner can be neither demoted nor removed', async () => {
  const org = await addOrg(control.deps, 'owned')
  await add(org, 'boss@example.org', 'owner')
  await add(org, 'other@example.org')
  await assert.rejects(changeMemberRole(control.deps, asOperator(org), { email: 'boss@example.org', role: 'admin' }), {
    code: 'forbidden',
  })
  await assert.rejects(removeMember(control.deps, asOperator(org), { email: 'boss@example.org' }), {
    code: 'forbidden',
  })
  await changeMemberRole(control.deps, asOperator(org), { email: 'boss@example.org', role: 'owner' })
  await changeMemberRole(control.deps, asOperator(org), { email: 'other@example.org', role: 'owner' })
  await removeMember(control.deps, asOperator(org), { email: 'boss@example.org' })
  await assert.rejects(removeMember(control.deps, asOperator(org), { email: 'other@example.org' }), {
    code: 'forbidden',
  })
})

test('when all owners are demoted or removed at the same time, exactly one stays', async () => {
  const org = await addOrg(control.deps, 'contested')
  const emails = [1, 2, 3, 4, 5, 6].map((n) => `owner${String(n)}@example.org`)
  for (const email of emails) await add(org, email, 'owner')
  for (let round = 0; round < 8; round++) {
    const ended = await Promise.allSettled(
      emails.map((email, index) =>
        index % 2 === round % 2
          ? changeMemberRole(control.deps, asOperator(org), { email, role: 'viewer' })
          : removeMember(control.deps, asOperator(org), { email }),
      ),
    )
    assert.equal(ended.filter(({ status }) => status === 'rejected').length, 1)
    const left = await membersOf(org)
    assert.equal(left.filter(({ role }) => role === 'owner').length, 1, `round ${String(round)}`)
    for (const email of emails) {
      if (left.some((member) => member.email === email))
        await changeMemberRole(control.deps, asOperator(org), { email, role: 'owner' })
      else await add(org, email, 'owner')
    }
  }
})

test('a user goes with the last membership, also while another organization adds the person', async () => {
  const [one, two] = [await addOrg(control.deps, 'left'), await addOrg(control.deps, 'joined')]
  const email = 'eve@example.org'
  const users = async () =>
    (await control.deps.db.asSystem((q) => q.query({ text: 'SELECT FROM users WHERE email = $1', values: [email] })))
      .rowCount
  for (let round = 0; round < 20; round++) {
    await add(one, email)
    await Promise.all([removeMember(control.deps, one, { email }), add(two, email)])
    assert.deepEqual([(await membersOf(one)).length, (await membersOf(two)).length, await users()], [0, 1, 1])
    await removeMember(control.deps, two, { email })
    assert.equal(await users(), 0)
  }
})

test('each change of members records one event with ids and no e-mail, and a repeated one records none', async () => {
  const org = await addOrg(control.deps, 'told')
  await add(org, 'first@example.org', 'owner', 'First')
  await add(org, 'second@example.org')
  await changeMemberRole(control.deps, org, { email: 'second@example.org', role: 'viewer' })
  await changeMemberRole(control.deps, org, { email: 'second@example.org', role: 'viewer' })
  const [second] = await membersOf(org)
  assert.ok(second)
  await removeMember(control.deps, org, { email: 'second@example.org' })
  await assert.rejects(removeMember(control.deps, org, { email: 'second@example.org' }), {
    code: 'member_not_found',
  })
  await assert.rejects(removeMember(control.deps, asOperator(org), { email: 'first@example.org' }), {
    code: 'forbidden',
  })
  const events = await eventsOf(org)
  const whom = { member_id: second.id, user_id: second.user_id }
  assert.deepEqual(
    events.slice(1).map(({ event_type, payload, actor }) => [event_type, payload, actor]),
    [
      ['member_added', { ...whom, role: 'member' }, org.actor],
      ['member_role_changed', { ...whom, role: 'viewer', from: 'member' }, org.actor],
      ['member_removed', { ...whom, role: 'viewer' }, org.actor],
    ],
  )
  assert.ok(!JSON.stringify(events).includes('example.org'))
})

test('an invalid e-mail, an invalid name and an unknown member are refused by field', async () => {
  const org = await addOrg(control.deps, 'refusing')
  for (const email of ['', 'x', 'a@', '@b', 'a b@c.org', 'a@b..c', 'a\n@b.org', 'ä@b.org', `${'a'.repeat(65)}@b.org`])
    await assert.rejects(add(org, email), { code: 'invalid_request' }, email)
  await assert.rejects(add(org, 'good@example.org', 'member', 'a\nb'), { code: 'invalid_request' })
  await assert.rejects(changeMemberRole(control.deps, asOperator(org), { email: 'nobody@example.org', role: 'owner' }), { code: 'member_not_found' }) // prettier-ignore
  assert.deepEqual(await membersOf(org), [])
  for (const email of ['owner@localhost', 'a.b+c@d-e.example.org', "o'neil@example.org"])
    assert.equal(parseEmail(email.toUpperCase()), email)
})
