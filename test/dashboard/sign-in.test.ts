import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { assertAccessible, takePicture, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { whyNoServer } from '../support/server.ts'

// Signing in to the dashboard by links, as people do it.

describe('signing in', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  before(async () => {
    world = await openDashboard()
  })
  after(() => world.close())

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
})
