import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { freePort } from '../support/free-port.ts'
import { startOidcProvider, type TestProvider } from '../support/oidc.ts'
import { whyNoServer } from '../support/server.ts'

// Signing in to the dashboard, by links and at a real provider of OpenID Connect, as people do it.

describe('signing in', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  let provider: TestProvider
  before(async () => {
    const port = String(await freePort())
    provider = await startOidcProvider([`http://127.0.0.1:${port}/auth/oidc/callback`])
    world = await openDashboard({
      SANDYARD_PORT: port,
      SANDYARD_OIDC_ISSUER: provider.issuer,
      SANDYARD_OIDC_CLIENT_ID: provider.clientId,
      SANDYARD_OIDC_CLIENT_SECRET: provider.clientSecret,
      SANDYARD_OIDC_LABEL: 'Example',
    })
  })
  after(async () => {
    await world.close()
    await provider.close()
  })

  const linkIn = (output: string): string => /http\S+/.exec(output)?.[0] ?? ''

  test('whoever is not signed in sees how to, and a link of the command signs them in once', async () => {
    const page = await world.openAsNobody('/volumes')
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
    await assertAccessible(page)
    await takePicture(page, 'sign-in')
    const link = linkIn(await world.member('login'))
    await page.goto(link)
    await page.getByRole('heading', { name: 'Sandboxes' }).first().waitFor()
    assert.ok(!page.url().includes('token'), 'the token stays in no history')
    await assertAccessible(page)
    const another = await world.openAsNobody(link)
    await another
      .getByRole('alert')
      .getByText(/was used/)
      .waitFor()
    await another.getByRole('heading', { name: 'Sign in' }).waitFor()
    await assertAccessible(another)
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
    await page.goto(`${world.server.url}/keys`)
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
  })

  test('a member who is removed is out at the next click', async () => {
    const page = await world.openAsNobody(linkIn(await world.member('invite', 'short@example.org')))
    await page.getByRole('heading', { name: 'Sandboxes' }).first().waitFor()
    await world.member('remove', 'short@example.org')
    await page.getByRole('link', { name: 'Volumes' }).click()
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
  })

  /** Logs in and consents on the pages of the provider. */
  async function logIn(page: Page, login: string): Promise<void> {
    await page.getByRole('link', { name: 'Sign in with Example' }).click()
    await page.getByPlaceholder('Enter any login').fill(login)
    await page.getByPlaceholder('and password').fill('any')
    await page.getByRole('button', { name: 'Sign-in' }).click()
    await page.getByRole('button', { name: 'Continue' }).click()
  }

  test('a member signs in at the provider of the organization', async () => {
    await world.member('add', 'pat@example.org', '--role', 'member', '--name', 'Pat')
    provider.accounts.set('pat', { email: 'pat@example.org', email_verified: true })
    const page = await world.openAsNobody('/')
    await logIn(page, 'pat')
    await page.getByRole('heading', { name: 'Sandboxes' }).first().waitFor()
    await page.getByRole('link', { name: 'Pat' }).click()
    await page.getByRole('heading', { name: 'Your sessions' }).waitFor()
    await page.getByRole('row', { name: /this one/ }).waitFor()
    await assertAccessible(page)
  })

  test('a person who is no member is told so on the page, and no link can make it say something else', async () => {
    provider.accounts.set('sam', { email: 'sam@example.org', email_verified: true })
    const page = await world.openAsNobody('/')
    await logIn(page, 'sam')
    await page.getByRole('alert').getByText('You are not a member of any organization here.').waitFor()
    await assertAccessible(page)
    const forged = await world.openAsNobody('/sign-in#error=Call+this+number')
    await forged.getByRole('alert').getByText('The sign-in was not completed').waitFor()
    assert.ok(!(await forged.content()).includes('Call this'))
  })

  test('an owner invites a person, changes the role and removes them; the person is out at once', async () => {
    const owner = await world.open('/members')
    await owner.getByLabel('E-mail address').fill('not an address')
    await owner.getByRole('button', { name: 'Invite' }).click()
    await owner.locator('.refusal').waitFor()
    await owner.getByLabel('E-mail address').fill('kim@example.org')
    await owner.getByRole('button', { name: 'Invite' }).click()
    const link = await owner.getByLabel('Link', { exact: true }).innerText()
    await assertAccessible(owner)
    const kim = await world.openAsNobody(link.trim())
    await kim.getByText('· viewer').waitFor({ state: 'attached' })
    await owner.getByLabel('Role of kim@example.org').selectOption('admin')
    await owner.getByText('kim@example.org is admin now').waitFor()
    await kim.reload()
    await kim.getByRole('link', { name: 'Keys', exact: true }).waitFor()
    await owner
      .getByRole('row', { name: /kim@example.org/ })
      .getByRole('button', { name: 'Remove' })
      .click()
    await owner.getByRole('dialog').getByRole('button', { name: 'Remove' }).click()
    await owner.getByText('Removed kim@example.org').waitFor()
    await kim.getByRole('link', { name: 'Keys', exact: true }).click()
    await kim.getByRole('heading', { name: 'Sign in' }).waitFor()
  })
})
