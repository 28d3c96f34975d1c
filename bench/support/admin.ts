import { Client } from 'pg'
import type { Cloud } from './cloud.ts'

/** Connects to the embedded server of a cloud as its superuser, which bypasses row-level security, in order to fill tables. */
export async function connectAdmin(cloud: Cloud): Promise<Client> {
  const env = await cloud.adminEnv()
  const client = new Client({
    host: env['PGHOST'] ?? '',
    port: Number(env['PGPORT']),
    database: env['PGDATABASE'] ?? '',
    user: env['PGUSER'] ?? '',
    password: env['PGPASSWORD'] ?? '',
  })
  await client.connect()
  return client
}
