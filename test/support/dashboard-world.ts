import assert from 'node:assert/strict'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { runCommand } from '../../src/lib/run-command.ts'
import { openBrowser, type Size } from './browser.ts'
import { ROOT } from './documents.ts'
import { startServer, type RealServer } from './server.ts'
import { startSessionProxy } from './session-proxy.ts'

/** The dashboard of a real server, in a real browser. */
export type DashboardWorld = {
  readonly server: RealServer
  /** Opens a page of the dashboard as a member with this role. */
  open(path: string, who?: { readonly role?: 'owner' | 'viewer'; readonly size?: Size }): Promise<Page>
  /** Closes the server and the browser, and asserts that no page complained. */
  close(): Promise<void>
}

const BUILD_LIMIT_MS = 120_000

export async function openDashboard(env: Readonly<Record<string, string>> = {}): Promise<DashboardWorld> {
  const build = `import('${join(ROOT, 'setup/dashboard.mjs')}').then((it) => it.ensureDashboard('${ROOT}'))`
  await runCommand(process.execPath, ['-e', build], { timeoutMs: BUILD_LIMIT_MS })
  const server = await startServer({ SANDYARD_STOP_GRACE_MS: '1000', SANDYARD_DASHBOARD: 'proxied', ...env })
  const browser = await openBrowser()
  const proxies: { readonly close: () => void }[] = []
  return {
    server,
    async open(path, { role = 'owner', size = 'desktop' } = {}) {
      const proxy = await startSessionProxy(server, role)
      proxies.push(proxy)
      return browser.open(`${proxy.url}${path}`, size)
    },
    async close() {
      await browser.close()
      for (const proxy of proxies) proxy.close()
      await server.close()
      assert.deepEqual(browser.complaints, [], 'the console of the browser has errors')
    },
  }
}
