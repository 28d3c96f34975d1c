import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import type { Role } from '../../src/domain/orgs/caller.ts'
import { buildDashboard } from './build-dashboard.ts'
import { openBrowser, type Size } from './browser.ts'
import { runProgram } from './program.ts'
import { startServer, type RealServer } from './server.ts'

/** The dashboard of a real server, in a real browser. */
export type DashboardWorld = {
  readonly server: RealServer
  /** Opens a page of the dashboard as a member with this role, who signed in by a link. */
  open(path: string, who?: { readonly role?: Role; readonly size?: Size }): Promise<Page>
  /** Opens a page as nobody. */
  openAsNobody(path: string, size?: Size): Promise<Page>
  /** Runs `sandyard member …` on the server's data folder. Resolves with its output. */
  member(...args: readonly string[]): Promise<string>
  /** Closes the server and the browser, and asserts that no page complained. */
  close(): Promise<void>
}

export async function openDashboard(env: Readonly<Record<string, string>> = {}): Promise<DashboardWorld> {
  await buildDashboard()
  const server = await startServer({ SANDYARD_STOP_GRACE_MS: '1000', ...env })
  const browser = await openBrowser()
  const cookies = new Map<Role, readonly Cookie[]>()

  const member = async (...args: readonly string[]): Promise<string> => {
    const { code, output } = await runProgram(['member', ...args], { SANDYARD_DATA_DIR: server.dataDir })
    assert.equal(code, 0, output)
    return output
  }

  /** Signs in by a link. The browser's other pages with this role get the same cookie. */
  async function signIn(role: Role): Promise<readonly Cookie[]> {
    const known = cookies.get(role)
    if (known !== undefined) return known
    const email = `${role}@example.org`
    const link = /http\S+/.exec(await member('invite', email, '--role', role))?.[0]
    const page = await browser.open(link ?? '')
    await page.getByRole('button', { name: 'Sign out' }).waitFor({ state: 'attached' })
    const made = await page.context().cookies()
    await page.context().close()
    cookies.set(role, made)
    return made
  }

  return {
    server,
    member,
    open: async (path, { role = 'owner', size = 'desktop' } = {}) =>
      browser.open(`${server.url}${path}`, { size, cookies: await signIn(role) }),
    openAsNobody: (path, size = 'desktop') =>
      browser.open(path.startsWith('http') ? path : `${server.url}${path}`, { size }),
    async close() {
      await browser.close()
      await server.close()
      assert.deepEqual(browser.complaints, [], 'the console of the browser has errors')
    },
  }
}

type Cookie = Awaited<ReturnType<ReturnType<Page['context']>['cookies']>>[number]
