/** What the demo image has beside the host's programs and their libraries. */

export type DemoFolder = { readonly path: string; readonly mode: number; readonly uid?: number; readonly gid?: number }

const DEMO_UID = 1000
const STICKY_MODE = 0o1777

export const DEMO_FOLDERS: readonly DemoFolder[] = [
  ...[
    'dev',
    'etc',
    'etc/ssl',
    'etc/ssl/certs',
    'home',
    'mnt',
    'opt',
    'proc',
    'run',
    'srv',
    'sys',
    'usr',
    'usr/bin',
    'usr/lib',
    'usr/lib64',
    'usr/local',
    'usr/local/bin',
    'usr/sbin',
    'var',
    'var/lib',
    'var/log',
  ].map((path) => ({ path, mode: 0o755 })),
  { path: 'root', mode: 0o700 },
  { path: 'tmp', mode: STICKY_MODE },
  { path: 'var/tmp', mode: STICKY_MODE },
  { path: 'home/demo', mode: 0o755, uid: DEMO_UID, gid: DEMO_UID },
]

export const DEMO_LINKS = ['bin', 'sbin', 'lib', 'lib64'].map((name) => ({ path: `/${name}`, target: `usr/${name}` }))

const LIBRARY_FOLDERS = ['/usr/lib', '/usr/lib64', '/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu'] as const

/** Copied when the host has them: name look-ups load their library at run time, certificates serve TLS clients. */
export const DEMO_HOST_FILES: readonly string[] = [
  '/etc/ssl/certs/ca-certificates.crt',
  ...LIBRARY_FOLDERS.flatMap((folder) =>
    ['libnss_files.so.2', 'libnss_dns.so.2', 'libresolv.so.2'].map((name) => `${folder}/${name}`),
  ),
  ...['d/dumb', 'l/linux', 'v/vt100', 's/screen', 'x/xterm', 'x/xterm-256color'].map((name) => `/lib/terminfo/${name}`),
]

/** Files that are written anew, with root, nobody and the user `demo` (1000). */
export function demoFiles(): readonly { readonly path: string; readonly content: string }[] {
  const id = String(DEMO_UID)
  return [
    {
      path: 'etc/passwd',
      content: [
        'root:x:0:0:root:/root:/bin/sh',
        `demo:x:${id}:${id}:demo:/home/demo:/bin/sh`,
        'nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin',
        '',
      ].join('\n'),
    },
    { path: 'etc/group', content: ['root:x:0:', 'tty:x:5:', `demo:x:${id}:`, 'nogroup:x:65534:', ''].join('\n') },
    { path: 'etc/nsswitch.conf', content: ['passwd: files', 'group: files', 'hosts: files dns', ''].join('\n') },
    {
      path: 'etc/os-release',
      content: ['ID=sandyard-demo', 'NAME="Sandyard demo"', 'PRETTY_NAME="Sandyard demo image"', ''].join('\n'),
    },
  ]
}
