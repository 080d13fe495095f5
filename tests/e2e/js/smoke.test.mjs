// The main job through the published JavaScript SDK. The server's address and key come from the environment.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, CommandExitError } from 'e2b'

test('create, run, files, pause, resume, fork, snapshot, kill', async () => {
  const sandbox = await Sandbox.create('base', { timeoutMs: 300_000, metadata: { suite: 'js' } })
  const made = [sandbox]
  try {
    const out = []
    const result = await sandbox.commands.run('printf out; printf err >&2', { onStdout: (data) => out.push(data) })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode, out.join('')], ['out', 'err', 0, 'out'])
    await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)

    const written = await sandbox.files.write('notes/a.txt', 'héllo')
    assert.equal(written.path, '/home/user/notes/a.txt')
    assert.equal(await sandbox.files.read('notes/a.txt'), 'héllo')

    const events = []
    const watch = await sandbox.files.watchDir('notes', (event) => events.push(event.type))
    await sandbox.files.write('notes/b.txt', 'new')
    while (!events.includes('write')) await new Promise((resolve) => setTimeout(resolve, 10))
    await watch.stop()

    const listed = await Sandbox.list({ query: { metadata: { suite: 'js' } } }).nextItems()
    assert.ok(listed.some((info) => info.sandboxId === sandbox.sandboxId))

    await sandbox.commands.run('exec -a jsmark sleep 600', { background: true, timeoutMs: 0 })
    const before = (await sandbox.commands.run('pgrep -f jsmark | head -1')).stdout
    await sandbox.pause()
    assert.equal(await sandbox.isRunning(), false)
    await sandbox.connect({ timeoutMs: 300_000 })
    assert.equal((await sandbox.commands.run('pgrep -f jsmark | head -1')).stdout, before)

    const snapshot = await sandbox.createSnapshot()
    const restored = await Sandbox.create(snapshot.snapshotId)
    made.push(restored)
    assert.equal(await restored.files.read('notes/b.txt'), 'new')
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  } finally {
    for (const each of made) assert.equal(await each.kill(), true)
  }
})
