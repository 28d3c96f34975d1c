import { Sandbox } from 'microsandbox'

// A process of its own that serves SSH for a sandbox on its standard input and output, by the unmodified public SDK: so
// the SDK's `serveConnection` has it, and so OpenSSH starts it as a `ProxyCommand`.

const [name = '', hostKeyPath = '', authorizedKeysPath = ''] = process.argv.slice(2)
const box = await (await Sandbox.get(name)).connect()
const server = await box.ssh().prepareServer({ hostKeyPath, authorizedKeysPath, sftp: true })
await server.serveConnection()
process.exit(0) // the SDK keeps reading its standard input
