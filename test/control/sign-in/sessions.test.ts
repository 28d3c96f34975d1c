import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { removeMember } from '../../../src/control/orgs/members.ts'
import { createSignInLink, signInByLink } from '../../../src/control/sign-in/links.ts'
import { signInByOidc } from '../../../src/control/sign-in/oidc.ts'
import { authenticateSession, listSessions } from '../../../src/control/sign-in/sessions.ts'
import { CallerEnded } from '../../../src/control/streams/watch-caller.ts'
import { OPERATOR_ACTOR } from '../../../src/domain/orgs/caller.ts'
import {
  INVITATION_MS,
  SEEN_RESOLUTION_MS,
  SESSION_IDLE_MS,
  SESSION_MAX_MS,
  SESSIONS_OF_MEMBER_MAX,
  SIGN_IN_LINK_MS,
} from '../../../src/domain/sign-in/session.ts'
import { makePruneSessionsLoop } from '../../../src/loops/prune.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addPerson } from '../../support/sign-in.ts'
import { makeTestClock, type TestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

let clock: TestClock
let control: TestControl
before(async () => {
  clock = makeTestClock()
  control = await makeTestControl({ clock })
})
after(() => control.close())

const acting = () => ({ org_id: control.caller.org_id, actor: OPERATOR_ACTOR })
const use = (token: string) => signInByLink(control.deps, { token, user_agent: 'a browser' })
const isIn = async (token: string) => (await authenticateSession(control.deps, token)) !== null

let people = 0
async function newLink(): Promise<string> {
  people += 1
  const email = `p${String(people)}@example.org`
  await addPerson(control.deps, control.caller.org_id, email, 'member')
  return (await createSignInLink(control.deps, acting(), email)).token
}

async function countOf(table: string): Promise<number> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ count: number }>({ text: `SELECT count(*)::integer AS count FROM ${table}` }),
  )
  return rows[0]?.count ?? -1
}

test('a link works for 15 minutes, and a later one of the same member replaces it', async () => {
  const late = await newLink()
  clock.advance(SIGN_IN_LINK_MS)
  await assert.rejects(use(late), { code: 'invalid_sign_in_link' })
  const first = await newLink()
  const second = await createSignInLink(control.deps, acting(), `p${String(people)}@example.org`)
  await assert.rejects(use(first), { code: 'invalid_sign_in_link' })
  clock.advance(SIGN_IN_LINK_MS - 1)
  assert.ok(await isIn((await use(second.token)).token))
})

test('a session ends 7 days after its last request, and 30 days after it began', async () => {
  const { token: unused } = await use(await newLink())
  const { token: used, lastsMs } = await use(await newLink())
  assert.equal(lastsMs, SESSION_MAX_MS)
  let elapsedMs = 0
  const step = SESSION_IDLE_MS - SEEN_RESOLUTION_MS
  while (elapsedMs + step < SESSION_MAX_MS) {
    clock.advance(step)
    elapsedMs += step
    assert.ok(await isIn(used))
    await lastSeenNow(used)
  }
  assert.ok(!(await isIn(unused)))
  clock.advance(SESSION_MAX_MS - elapsedMs)
  assert.ok(!(await isIn(used)))
})

/** The last use is recorded in the background. */
async function lastSeenNow(token: string): Promise<void> {
  await waitUntil(async () => {
    const found = await authenticateSession(control.deps, token)
    return found?.session.last_seen_at.getTime() === clock.now().getTime()
  })
}

test('the last use of a session is stored to ten minutes', async () => {
  const { token } = await use(await newLink())
  const began = clock.now()
  clock.advance(SEEN_RESOLUTION_MS - 1)
  await isIn(token)
  const found = await authenticateSession(control.deps, token)
  assert.equal(found?.session.last_seen_at.getTime(), began.getTime())
  clock.advance(1)
  await lastSeenNow(token)
})

test('a member has at most 20 sessions: another one ends the longest unused', async () => {
  const tokens: string[] = []
  people += 1
  const email = `p${String(people)}@example.org`
  await addPerson(control.deps, control.caller.org_id, email, 'member')
  for (let n = 0; n <= SESSIONS_OF_MEMBER_MAX; n += 1) {
    clock.advance(1_000)
    tokens.push((await use((await createSignInLink(control.deps, acting(), email)).token)).token)
  }
  assert.deepEqual(await Promise.all(tokens.map(isIn)), [false, ...Array.from({ length: SESSIONS_OF_MEMBER_MAX }, () => true)]) // prettier-ignore
  const current = await authenticateSession(control.deps, tokens[5] ?? '')
  assert.ok(current !== null)
  const listed = await listSessions(control.deps, current)
  assert.deepEqual([listed.length, listed.filter(({ is_current }) => is_current).length], [SESSIONS_OF_MEMBER_MAX, 1])
  assert.equal(listed[0]?.user_agent, 'a browser')
})

test('what a session has open ends with it, and the reason is the session', async () => {
  const { token } = await use(await newLink())
  const found = await authenticateSession(control.deps, token)
  assert.ok(found !== null)
  const watch = control.deps.callerWatcher.watch(found.caller)
  await removeMember(control.deps, acting(), { email: `p${String(people)}@example.org` })
  await waitUntil(() => Promise.resolve(watch.signal.aborted))
  assert.ok(watch.signal.reason instanceof CallerEnded)
  assert.equal(watch.signal.reason.why, 'session_ended')
})

test('a sign-in and the removal of its member at the same time leave no session, and fail in words', async () => {
  for (let round = 0; round < 20; round += 1) {
    people += 1
    const [email, subject] = [`p${String(people)}@example.org`, `subject-${String(people)}`]
    await addPerson(control.deps, control.caller.org_id, email, 'member')
    const { token } = await createSignInLink(control.deps, acting(), email)
    const person = { issuer: 'https://accounts.example.org', subject, email, isEmailVerified: true }
    const results = await Promise.allSettled([
      use(token),
      signInByOidc(control.deps, { person, user_agent: null }),
      removeMember(control.deps, acting(), { email }),
    ])
    const codes = results.flatMap((result) =>
      result.status === 'rejected' ? [String(Object(result.reason).code)] : [],
    )
    for (const code of codes) assert.match(code, /^(invalid_sign_in_link|oidc_no_member|not_signed_in)$/)
    for (const result of results)
      if (result.status === 'fulfilled' && result.value !== undefined) assert.ok(!(await isIn(result.value.token)))
  }
})

test('expired sessions and links are deleted', async () => {
  await use(await newLink())
  await newLink()
  clock.advance(Math.max(SESSION_MAX_MS, INVITATION_MS))
  const { token } = await use(await newLink())
  await makePruneSessionsLoop(control.deps).run(new AbortController().signal)
  assert.deepEqual([await countOf('member_sessions'), await countOf('sign_in_links')], [1, 0])
  assert.ok(await isIn(token))
})
