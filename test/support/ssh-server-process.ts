import { Sandbox } from 'microsandbox'

// Serves SSH for a sandbox on standard input and output, by `serveConnection` of the unmodified public SDK. OpenSSH
// starts this process as its `ProxyCommand`.

const [name = '', hostKeyPath = '', authorizedKeysPath = ''] = process.argv.slice(2)
const box = await (await Sandbox.get(name)).connect()
const server = await box.ssh().prepareServer({ hostKeyPath, authorizedKeysPath, sftp: true })
await server.serveConnection()
process.exit(0) // needed because the SDK keeps reading standard input
