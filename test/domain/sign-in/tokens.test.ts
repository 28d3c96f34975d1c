import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  formatSessionToken,
  formatSignInToken,
  isSessionToken,
  isSignInToken,
} from '../../../src/domain/orgs/api-key.ts'
import { redactEmail } from '../../../src/domain/orgs/email.ts'
import { includesScope, leastRoleOf, ROLES, SCOPE_OF_ROLE, SCOPES } from '../../../src/domain/orgs/caller.ts'
import { csrfTokenOf, signInPath } from '../../../src/domain/sign-in/session.ts'
import { systemRandom } from '../../../src/lib/random.ts'

test('a token is recognized whole and of its own kind, so most guesses cost no query', () => {
  const [session, link] = [formatSessionToken(systemRandom.bytes(32)), formatSignInToken(systemRandom.bytes(32))]
  assert.deepEqual([isSessionToken(session), isSignInToken(link)], [true, true])
  assert.deepEqual([isSessionToken(link), isSignInToken(session)], [false, false])
  for (const bad of [
    '',
    session.slice(1),
    `${session}0`,
    session.slice(0, -1),
    session.replace(/.$/, (last) => (last === '0' ? '1' : '0')),
  ])
    // prettier-ignore
    assert.equal(isSessionToken(bad), false, bad)
})

test('the CSRF token of a session is its own and contains nothing of the secret', () => {
  const [one, other] = [formatSessionToken(systemRandom.bytes(32)), formatSessionToken(systemRandom.bytes(32))]
  assert.equal(csrfTokenOf(one), csrfTokenOf(one))
  assert.notEqual(csrfTokenOf(one), csrfTokenOf(other))
  assert.ok(!csrfTokenOf(one).includes(one.slice(4, 14)))
})

test('the token of a link is in the fragment, which browsers send to no server', () => {
  assert.equal(new URL(signInPath('syl_x'), 'http://localhost').search, '')
  assert.equal(new URL(signInPath('syl_x'), 'http://localhost').hash, '#token=syl_x')
})

test('an e-mail address is redacted to its first character and its host', () => {
  assert.equal(redactEmail('ann.lee@example.org'), 'a***@example.org')
  assert.equal(redactEmail('o@localhost'), 'o***@localhost')
})

test('a higher role may do all that a lower one may, and a refusal names the least role that may', () => {
  for (const scope of SCOPES) {
    const may = ROLES.map((role) => includesScope(SCOPE_OF_ROLE[role], scope))
    assert.ok(
      may.every((one, index) => index === 0 || may[index - 1] === true || !one),
      'roles are ordered from the highest',
    )
    assert.ok(includesScope(SCOPE_OF_ROLE[leastRoleOf(scope)], scope))
  }
  assert.deepEqual(SCOPES.map(leastRoleOf), ['viewer', 'member', 'admin'])
})
