import { startTestServer, TEST_SERVER_VARIABLE, type TestServer } from './postgres.ts'

let server: TestServer | null = null

/** Starts one PostgreSQL for the whole run (`--test-global-setup`) and passes its URL to the test files in a variable. */
export async function globalSetup(): Promise<void> {
  if (process.env[TEST_SERVER_VARIABLE] !== undefined) return
  server = await startTestServer()
  process.env[TEST_SERVER_VARIABLE] = server.adminUrl
}

/** Stops that server after the last test file. */
export async function globalTeardown(): Promise<void> {
  await server?.stop()
}
